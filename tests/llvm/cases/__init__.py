"""Random operations on random values, and the errors of the CPU's kernels compared with float64; see `check`."""
