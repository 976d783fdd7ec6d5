"""Checks of checkpoints in CI of other projects: the pre-commit hooks, the GitHub action, the pytest plugin."""
