"""Kernels whose state is one row for each sequence: causal convolution, the gated delta rule and the state space."""
