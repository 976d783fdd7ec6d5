"""Observers of a launch: bytes, bank conflicts, races in shared memory, order between blocks."""
