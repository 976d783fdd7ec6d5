"""The command that serves a bundle."""
