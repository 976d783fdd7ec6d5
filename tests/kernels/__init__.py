"""GPU kernels in the emulator, compared with torch and with float64; planted faults."""
