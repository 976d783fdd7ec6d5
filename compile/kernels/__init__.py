"""GPU kernels in Triton, and which of them a launch of a schedule becomes."""
