"""Which cases of a test `make test` runs, in folders whose cases take long; `make test-full` runs all of them."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

FOLDERS = (
    "adapters", "check", "cli", "codes", "convert", "draft", "flagships", "hostile", "kernels", "llvm", "quantised",
)  # fmt: skip
FEW = 3  # cases of a test, the first and the last among them


def mark_the_others(items: list[pytest.Item], root: Path) -> None:
    """Marks all but FEW evenly spread cases of each test in FOLDERS as slow, besides those that are slow already."""
    cases: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.path.relative_to(root).parts[0] in FOLDERS and not item.get_closest_marker("slow"):
            cases[item.nodeid.partition("[")[0]].append(item)
    for each in cases.values():
        chosen = {round(step * (len(each) - 1) / (FEW - 1)) for step in range(FEW)}
        for number, item in enumerate(each):
            if len(each) > FEW and number not in chosen:
                item.add_marker(pytest.mark.slow)
