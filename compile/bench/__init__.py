"""The bench command: times a bundle and other engines, in turns, each in a process of its own."""
