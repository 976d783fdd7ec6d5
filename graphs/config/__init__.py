"""Reading config.json: every key is read, rejected, or known not to affect the result."""
