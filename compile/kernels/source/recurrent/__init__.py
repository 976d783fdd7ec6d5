"""Kernels whose state is one row for each sequence: causal convolution and the gated delta rule."""
