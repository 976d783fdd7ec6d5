"""The HTML report: one section for each file."""
