"""Kernels that select the keys of attention, and pass the selection on to other layers."""
