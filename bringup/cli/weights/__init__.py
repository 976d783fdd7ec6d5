"""Commands that write weights in another form, or compare them: `convert`, `export`, `diff`, `lock`, `fit`."""
