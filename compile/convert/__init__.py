"""Weights on disk in another form: each rank's arrays, the published layout back, plans that are compared."""
