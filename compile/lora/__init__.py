"""LoRA for a job: the adapter's factors of its graph, the check of an adapter, weights with one merged in."""
