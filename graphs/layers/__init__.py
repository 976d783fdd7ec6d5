"""Modules with parameters: attention, experts, norms, embeddings, linear layers."""
