"""Errors of a command: exit codes, crash reports, and whose code failed."""
