"""Kernels for sm_90 in Gluon, Triton's language with explicit layouts and barriers: warps have different tasks."""
