"""Repairs of an adapter's Python file, where a check can prove them: names of tensors, and the order of axes."""
