"""GPU kernels in Triton, their compilation, and the selection of kernels for a launch of a schedule."""
