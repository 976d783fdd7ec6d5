"""Weights on disk in another form: arrays for ranks, the published layout, locks and differences of plans."""
