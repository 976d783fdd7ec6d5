"""Quantised checkpoints in `check`: config keys compared with tensors, one finding for each mistake."""
