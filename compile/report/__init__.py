"""Facts about a compile or a verification, for renderers."""
