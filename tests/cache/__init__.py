"""The compile cache: which inputs change which keys, and the store."""
