"""Mistakes in quantised checkpoints, whose sound forms the writers of tests/quantised make."""
