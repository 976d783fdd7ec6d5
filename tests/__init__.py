"""Tests of bringup, by the folders of its source code."""

# Seconds after which a test gives up on what does not end. It is long because a machine may be slow or stop for a
# while, and nothing but the end of a test that hangs may depend on it.
PATIENCE = 300
