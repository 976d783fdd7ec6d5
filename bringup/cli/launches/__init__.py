"""Commands on launches of kernels: their test, and the profile of a run."""
