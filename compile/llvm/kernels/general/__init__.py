"""Kernels for any shape, strides and dtype: the operations of users' models that have no faster kernel."""
