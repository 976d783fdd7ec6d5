"""Every mutation is found: by its code, in its phase, once, with the right parameter named; as docs/faults.md says.

What the peers said there is as it was when the page was written.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from bringup.cli.main import cli
from tests.check.mutations.answer import Page, answer_to, ask
from tests.check.mutations.bases import BASES, base
from tests.check.mutations.mutation import PAINS, Mutation, Trial
from tests.check.mutations.table import MUTATIONS

CHECKED = [mutation for mutation in MUTATIONS if mutation.phase == "check"]
KEYS = [mutation.key for mutation in MUTATIONS]
PAGE = Page("faults.md", written_by="python -m benchmarks.faults_ours")


COMPILED = ("gpt2", "llama")  # the bases that `make test` compiles, for the first mutation of each phase


def marked() -> Iterator[Any]:
    seen: set[str] = set()
    for mutation in MUTATIONS:
        slow = mutation.phase != "check" and (mutation.base not in COMPILED or mutation.phase in seen)
        yield pytest.param(mutation, id=mutation.key, marks=pytest.mark.slow if slow else ())
        if not slow:
            seen.add(mutation.phase)


def test_there_are_thirty_and_one_for_each_pain() -> None:
    assert len(MUTATIONS) >= 30
    assert len(set(KEYS)) == len(KEYS)
    assert {mutation.pain for mutation in MUTATIONS} == set(PAINS) == set(range(1, 15))
    assert all(mutation.seen for mutation in MUTATIONS)


@pytest.mark.parametrize("mutation", list(marked()))
def test_it_is_found_once(mutation: Mutation) -> None:
    PAGE.assert_found_once(mutation)


def test_every_mutation_has_a_row() -> None:
    assert list(PAGE.rows) == [mutation.title for mutation in MUTATIONS]
    assert f"bringup finds {len(MUTATIONS)} of {len(MUTATIONS)} and names" in PAGE.text


@pytest.mark.parametrize("mutation", CHECKED, ids=[mutation.key for mutation in CHECKED])
def test_the_command_says_the_same(mutation: Mutation, tmp_path: Path) -> None:
    trial = Trial(base(mutation.base))
    mutation.spoil(trial)
    case = trial.write(tmp_path / "model")
    result = CliRunner().invoke(cli, [*case.words(), "--format", "json"])
    assert result.exit_code == (0 if mutation.warns else 1), result.output
    found = json.loads(result.stdout)["findings"]
    assert [(finding["code"], finding["parameter"]) for finding in found] == [
        (finding.code, finding.parameter) for finding in answer_to(mutation).findings
    ]


@pytest.mark.parametrize(
    ("key", "last"),
    [
        *((key, "check") for key in BASES),
        *(pytest.param(key, "verify", marks=() if key in COMPILED else pytest.mark.slow) for key in BASES),
    ],
)
def test_the_sound_checkpoint_passes(key: str, last: str, tmp_path: Path) -> None:
    answer = ask(Trial(base(key), 3 if last == "check" else 1).write(tmp_path / "model"), last)
    assert answer.findings == []
    assert answer.exit_code == 0


@pytest.mark.parametrize("key", ["gpt2", pytest.param("llama", marks=pytest.mark.slow)])
def test_the_sound_sources_as_user_files_pass(key: str, tmp_path: Path) -> None:
    """What mutations edit: copies of the family's own graph and adapter."""
    trial = Trial(base(key))
    trial.edit_graph("from __future__", "from __future__")
    trial.edit_adapter("from __future__", "from __future__")
    case = trial.write(tmp_path / "model")
    assert case.model
    assert case.adapter
    assert ask(case, "verify").findings == []
