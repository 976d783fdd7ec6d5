"""docs/faults.md is what bringup says now; what the peers said is as it was when the page was written."""

from __future__ import annotations

import re

import pytest

from tests.check.drafts import ROOT
from tests.check.mutations.answer import told
from tests.check.mutations.mutation import Mutation
from tests.check.mutations.table import MUTATIONS

PAGE = (ROOT / "docs/faults.md").read_text("utf-8")
ROW = re.compile(r"^\| \[(.+)\]\(#\S+\) \((\w+)\) \| (\d+) \| (.+?) \| ", re.MULTILINE)
ROWS = {row[0]: row[1:] for row in ROW.findall(PAGE)}


def test_every_mutation_has_a_row() -> None:
    assert list(ROWS) == [mutation.title for mutation in MUTATIONS]


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.key)
def test_its_row_is_what_bringup_says(mutation: Mutation) -> None:
    assert ROWS[mutation.title] == (mutation.base, str(mutation.pain), told(mutation))


def test_the_count_is_that_of_the_table() -> None:
    assert f"bringup finds {len(MUTATIONS)} of {len(MUTATIONS)} and names" in PAGE
