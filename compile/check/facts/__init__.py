"""What several findings look at: shapes, absent tensors and who reads them, words of the config, missing rules."""
