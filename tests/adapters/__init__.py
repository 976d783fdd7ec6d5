"""Adapters: the algebra, plans, checkpoint formats, sources, GGUF dialects, ranks."""
