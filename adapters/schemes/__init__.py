"""Quantisation schemes: how published checkpoints store matrices in few bits, one file each."""
