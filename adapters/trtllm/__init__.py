"""TensorRT-LLM's checkpoints: one table of names and config keys, by which ranks are written and read."""
