"""The passes, one file each: a frozen dataclass of options that transforms an OpGraph."""
