"""Checkpoint formats: headers first, arrays on demand (safetensors, GGUF, arrays in memory)."""
