"""The CPU backend: emits kernels as LLVM IR, and runs the launches of a step on threads."""
