"""Observers of a launch: memory traffic, bank conflicts, races in shared memory, order between blocks."""
