"""The passes, one file each: a frozen dataclass of options that turns an OpGraph into another."""
