"""From a program to code that runs: torch, and MLIR compiled by IREE."""
