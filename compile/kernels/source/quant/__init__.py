"""Products with matrices in few bits: of activations in floats, and of those in float8."""
