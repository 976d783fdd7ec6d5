"""A function of a program as plain data: operations, their roles, and the conditions for fusing them."""
