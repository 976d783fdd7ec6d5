"""Selects the kernels for operations whose state is one row for each sequence."""
