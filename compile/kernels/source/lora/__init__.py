"""Kernels for LoRAs: products with the factors of each row, and the assignment of slots to rows."""
