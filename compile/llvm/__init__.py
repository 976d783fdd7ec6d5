"""The CPU: kernels as LLVM IR emitted from Python, and the threads that run a step's launches."""
