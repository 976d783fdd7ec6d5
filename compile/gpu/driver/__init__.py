"""CUDA's driver and HIP's runtime, as one set of typed functions."""
