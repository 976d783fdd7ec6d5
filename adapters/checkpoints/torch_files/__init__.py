"""Files that torch.save writes, read without torch: the zip and the legacy layout, and the pickle in them."""
