"""The verify command: compares a bundle with a reference, and attributes the error."""
