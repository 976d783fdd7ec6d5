"""Facts for several findings: causes, shapes, absent tensors and their readers, config keys, missing rules."""
