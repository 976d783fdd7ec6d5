"""Selects the CPU kernels of each launch of a schedule. Nothing here imports llvmlite."""
