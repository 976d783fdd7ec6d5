"""Finds the weight, the module or the operation where a verification fails."""
