"""Runs a bundle: sessions and sampling."""
