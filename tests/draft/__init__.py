"""`bringup init`: what it drafts, and what docs/adding-a-model.md makes of a draft."""
