"""Repairs of an adapter's Python file that a check proves: names of tensors, and the order of axes."""
