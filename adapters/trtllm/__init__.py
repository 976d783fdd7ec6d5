"""TensorRT-LLM's checkpoints: one table of names and words, by which ranks are written and by which they are read."""
