"""Quantisation schemes: how published checkpoints store quantised matrices, one file each."""
