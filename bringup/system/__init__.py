"""The operating system: atomic writes, locks, signals, child processes, its errors as diagnostics."""
