"""Measures the error against a reference implementation."""
