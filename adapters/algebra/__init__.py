"""Expressions over checkpoint tensors, and the copy nests that they become. Reads no file."""
