"""Selectors of the kernels whose state is one row for each sequence."""
