"""A program as a flat list of launches: the operations of each, their memory, and the bytes read and written."""
