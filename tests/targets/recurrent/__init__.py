"""Bundles of small graphs with recurrent layers."""
