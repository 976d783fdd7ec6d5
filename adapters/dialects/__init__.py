"""How llama.cpp writes each family in GGUF: one table a family, in a file of its name."""
