"""Generates Triton text for the elements of a group of nodes, which selectors pass to kernels as constants."""
