"""Reading config.json: every key is read, refused, or known to change no number."""
