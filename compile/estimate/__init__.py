"""Memory and sizes of a compile, before it starts."""
