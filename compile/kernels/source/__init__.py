"""Triton kernels, one operation a file. Only the compiler of kernels imports them, for they import Triton."""
