"""Files of torch.save, read without torch: the zip and the legacy layout, and the pickle in them."""
