"""`convert`, `export`, `diff`, `lock` and `fit`."""
