"""The verify command: compares the logits of a bundle with a reference, and locates the cause of a difference."""
