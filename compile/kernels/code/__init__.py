"""Triton text for the elements of a group of nodes: what selectors give kernels as constants."""
