"""LoRA for a job: the check of an adapter, weights with one merged in, and conversion."""
