"""Mistakes in quantised checkpoints. The writers of tests/quantised create the valid forms."""
