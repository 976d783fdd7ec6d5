"""What is done with a plan: arrays, shards, fused buffers, and the published layout back."""
