"""Which kernels a launch of a schedule becomes. Nothing here imports Triton."""
