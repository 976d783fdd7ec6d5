"""TensorRT-LLM's checkpoints: one table of names and config keys, for writing and reading the files of ranks."""
