"""Random operations with random numbers, and how far kernels of the CPU are from float64; see `check`."""
