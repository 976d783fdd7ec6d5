"""Bundles of a small graph with recurrent layers, on the kernels of GPUs."""
