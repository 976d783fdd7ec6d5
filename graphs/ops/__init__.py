"""Pure functions with typed signatures: what layers compute."""
