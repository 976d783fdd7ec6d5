"""Emits LLVM IR from Python: the features of a processor, loops, vectors, dtypes, and elementary functions."""
