"""A basic block of PTX as one Python function of numpy statements."""
