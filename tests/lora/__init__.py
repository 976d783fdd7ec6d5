"""`bringup lora`: adapters of other programs, broken adapters, conversion, ranks."""
