"""Every mistake in a quantised checkpoint is found once, in its phase, and as docs/faults-quantised.md says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.check.mutations.answer import Page, ask
from tests.check.mutations.bases import base
from tests.check.mutations.mutation import Mutation, Trial
from tests.check.mutations.stored.bases import STORED
from tests.check.mutations.stored.table import STORED_MUTATIONS

PAGE = Page("faults-quantised.md", written_by="python -m benchmarks.faults_ours --table stored")


def marked() -> Iterator[Any]:
    """What compiles is slow, but for the first of each phase."""
    seen = {"check"}
    for mutation in STORED_MUTATIONS:
        slow = mutation.phase in seen and mutation.phase != "check"
        seen.add(mutation.phase)
        yield pytest.param(mutation, id=mutation.key, marks=pytest.mark.slow if slow else ())


def test_there_are_thirty_of_many_schemes() -> None:
    assert len(STORED_MUTATIONS) >= 30
    assert len({mutation.key for mutation in STORED_MUTATIONS}) == len(STORED_MUTATIONS)
    assert {mutation.base for mutation in STORED_MUTATIONS} <= STORED.keys()
    assert list(PAGE.rows) == [mutation.title for mutation in STORED_MUTATIONS]
    assert f"bringup finds {len(PAGE.rows)} of {len(PAGE.rows)} and names" in PAGE.text


@pytest.mark.parametrize("mutation", list(marked()))
def test_it_is_found_once(mutation: Mutation) -> None:
    PAGE.assert_found_once(mutation)


AGAINST = sorted({mutation.base for mutation in STORED_MUTATIONS if mutation.phase == "against"})


@pytest.mark.parametrize(
    ("name", "last"),
    [
        *((name, "check") for name in STORED),
        *(pytest.param(name, "against", marks=pytest.mark.slow) for name in AGAINST),
    ],
)
def test_the_sound_checkpoint_passes(name: str, last: str, tmp_path: Path) -> None:
    """Also where it is held to the activations of the floats that it stands for."""
    answer = ask(Trial(base(name)).write(tmp_path / "model"), last, name)
    assert answer.findings == []
    assert answer.exit_code == 0
