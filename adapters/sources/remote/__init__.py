"""Checkpoints behind HTTP: byte ranges of files, repositories of hubs, and downloads that go on where they stopped."""
