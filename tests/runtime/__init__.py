"""Sessions, batches, sampling and LoRAs at run time."""
