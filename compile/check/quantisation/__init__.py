"""Quantised checkpoints in `check`: what their words and tensors say of each other, one finding a mistake."""
