"""Translates each basic block of PTX to a Python function of numpy statements."""
