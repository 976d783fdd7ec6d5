"""GPU kernels in Triton, and the selection of kernels for a launch of a schedule."""
