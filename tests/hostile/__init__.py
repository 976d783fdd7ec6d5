"""Malicious and damaged files: bounded time and memory, one error each."""
