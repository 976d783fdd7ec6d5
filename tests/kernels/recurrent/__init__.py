"""Kernels whose state is one row for each sequence, on the emulator."""
