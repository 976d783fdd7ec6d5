"""Expressions over checkpoint tensors, and the copy nests that they reduce to. Reads no file."""
