"""Kernels of any shape, strides and dtype: what operations of users' models run as where nothing is faster."""
