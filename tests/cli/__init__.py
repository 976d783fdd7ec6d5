"""The commands: output, exit codes, completion, errors."""
