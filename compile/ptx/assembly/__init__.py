"""Parses PTX text into instructions and basic blocks, and checks them against the table of supported instructions."""
