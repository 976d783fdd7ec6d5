"""A program as a flat list of launches: which operations run together, on which memory, and what each must move."""
