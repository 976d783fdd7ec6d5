"""Findings about a checkpoint and a graph: one finding for each mistake."""
