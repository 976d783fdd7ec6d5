"""Generates Triton code for the elements of a group of nodes. Selectors pass it to kernels as constants."""
