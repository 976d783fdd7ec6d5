"""A function of a program as plain data: operations, their roles, and which can be fused into one launch."""
