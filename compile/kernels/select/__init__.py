"""Selects the kernels for a launch of a schedule. No module here imports Triton."""
