"""Checkpoints over HTTP: byte ranges of files, repositories of hubs, and downloads that resume."""
