"""Reports as text and in every `--format`, and how single parts of them are rendered."""
