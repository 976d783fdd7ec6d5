"""Facts for several findings: shapes, absent tensors and their readers, config keys, missing rules."""
