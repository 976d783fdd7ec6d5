"""A batch with a draft."""
