"""A function of a program as plain data: operations, what kind of work each is, and which can be one launch."""
