"""Kernels of packed weights: products, embeddings, dequantisation."""
