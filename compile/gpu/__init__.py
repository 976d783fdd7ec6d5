"""Bundles on a GPU: what loads their kernels and starts their launches, through CUDA's driver or HIP's runtime."""
