"""Quantised checkpoints: each published format, written from its specification, and the matrices read from it."""
