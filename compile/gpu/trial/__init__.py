"""Tests the kernels of a bundle: runs each launch under every observer, and compares its results with the reference."""
