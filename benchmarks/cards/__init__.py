"""Parts of `benchmarks/gpu.py`: the models, their correctness, and their speed on a GPU."""
