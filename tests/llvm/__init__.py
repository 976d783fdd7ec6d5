"""CPU kernels, compared with torch and with float64."""
