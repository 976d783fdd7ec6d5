"""`bringup init`: its drafts, and the steps of docs/adding-a-model.md that complete a draft."""
