"""Selects the kernels for a launch of a schedule. Nothing here imports Triton."""
