"""Ranks of a division, run together in one process: their logits are those of the undivided graph."""
