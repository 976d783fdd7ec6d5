"""The kernels of a bundle on trial: each launch under every observer, its results against those of the reference."""
