"""Triton kernels, one operation in each file. Only the kernel compiler imports them, because they import Triton."""
