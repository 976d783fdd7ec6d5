"""Kernels for any shape, strides and dtype, for operations of users' models without a faster kernel."""
