"""From a graph to a program: traced functions and calls, the same for every target."""
