"""Kernels of LoRAs: products with the factors of each row, and which row has which."""
