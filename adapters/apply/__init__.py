"""The uses of a plan: arrays, shards, fused buffers, and the published layout."""
