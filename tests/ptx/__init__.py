"""The PTX emulator: instructions, observers, planted faults."""
