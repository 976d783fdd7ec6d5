"""Which kernels a launch of a schedule becomes on the CPU. Nothing here imports llvmlite."""
