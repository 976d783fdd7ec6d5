"""The verify command: runs a bundle beside a reference, and attributes the error."""
