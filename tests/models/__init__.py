"""One file for each family, and the tests of all families against transformers."""
