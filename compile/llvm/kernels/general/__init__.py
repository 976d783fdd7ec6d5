"""Kernels of any shape, strides and dtype: what an operation of a model of one's own runs as, if nothing faster does."""
