"""Targets: options, bundles and executors of each, and targets of other packages."""
