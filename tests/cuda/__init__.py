"""The emulated CUDA driver."""
