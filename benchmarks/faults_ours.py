"""Writes what bringup reports into docs/faults.md or docs/faults-quantised.md again, and leaves other tools' reports.

    python -m benchmarks.faults_ours [--table stored]

`faults.py` writes the complete pages, and needs the other tools for it. The page must have all mutations: a new one
needs the complete page.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence

from benchmarks.faults import PAGES, TABLES
from benchmarks.faults_page import anchor
from tests.check.mutations.answer import answer_text, printed
from tests.check.mutations.mutation import Mutation


def rewritten(text: str, mutations: Sequence[Mutation]) -> str:
    """The page with bringup's cell in the row of each mutation, and its text in the section of each.

    Raises ValueError if the page lacks a mutation, or has others.
    """
    for mutation in mutations:
        row = f"\n| [{mutation.title}](#{anchor(mutation)}) ({mutation.base}) | {mutation.pain} | "
        text = _between(text, row, answer_text(mutation), " | ")
        section = re.search(rf"\n## {re.escape(mutation.title)}\n\n.*\n\nbringup:\n\n```text\n", text)
        text = _between(text, section[0] if section else "", printed(mutation), "\n```\n")
    if (rows := len(re.findall(r"^\| \[", text, re.MULTILINE))) != len(mutations):
        raise ValueError(f"the page has {rows} mistakes, not {len(mutations)}: write it with benchmarks.faults")
    return text


def _between(text: str, start: str, new: str, end: str) -> str:
    """The text with `new` between the only `start` and the `end` after it."""
    if not start or text.count(start) != 1:
        raise ValueError(f"the page lacks {start or 'a section'}: write it with benchmarks.faults")
    before, rest = text.split(start)
    return before + start + new + end + rest.partition(end)[2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", choices=sorted(TABLES), default="all")
    table = parser.parse_args().table
    text = PAGES[table].read_text("utf-8")
    PAGES[table].write_text(rewritten(text, TABLES[table]), "utf-8")


if __name__ == "__main__":
    main()
