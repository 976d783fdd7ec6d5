"""Parts of `benchmarks/gpu.py`: which models, whether they are right, how fast they are on a card."""
