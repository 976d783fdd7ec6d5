"""Pure functions with typed signatures, which layers call."""
