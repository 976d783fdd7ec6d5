"""CUDA's driver API and HIP's runtime behind one set of typed functions."""
