"""Runs bundles on a GPU: loads their kernels and starts their launches, through CUDA's driver or HIP's runtime."""
