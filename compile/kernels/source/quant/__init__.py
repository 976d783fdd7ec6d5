"""Products with packed matrices: of activations in floats or float8."""
