"""Checks of checkpoints in other people's CI: the pre-commit hooks, the GitHub action, the pytest plugin."""
