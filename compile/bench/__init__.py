"""The bench command: measures a bundle and other engines in alternating rounds, each in a separate process."""
