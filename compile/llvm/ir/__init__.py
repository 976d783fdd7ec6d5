"""LLVM IR from Python: what a processor has, an emitter of loops and numbers, and elementary functions."""
