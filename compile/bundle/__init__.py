"""Bundles on disk: manifest, weights, tokenizer, and the key of all inputs."""
