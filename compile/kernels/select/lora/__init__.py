"""Launches of the operations of LoRAs: their products, and which row has which."""
