"""Ops whose state is one row for each sequence, and changes with every token."""
