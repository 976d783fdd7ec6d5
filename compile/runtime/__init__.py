"""Runs a bundle: sessions, batches and sampling."""
