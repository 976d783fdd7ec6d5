"""LoRAs of a running bundle: a cache on the host, slots on the device, and their users."""
