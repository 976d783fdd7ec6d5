"""The names and layouts of llama.cpp's GGUF files: one table for each family, in a file of its name."""
