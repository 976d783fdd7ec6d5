"""The kernels of weights in few bits."""
