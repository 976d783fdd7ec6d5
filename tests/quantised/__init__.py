"""Quantised checkpoints: each published format, written from its specification, and what is read of it."""
