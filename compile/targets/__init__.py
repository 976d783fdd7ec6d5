"""From a program to executable code: the protocol of targets, and the built-in targets."""
