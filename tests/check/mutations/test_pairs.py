"""Any two independent mutations of one checkpoint are two diagnostics, each as if it were alone."""

from __future__ import annotations

import re
from functools import cache
from itertools import combinations
from pathlib import Path

import pytest

from tests.check.mutations.answer import ask, names
from tests.check.mutations.bases import base
from tests.check.mutations.combinations import COMBINATIONS
from tests.check.mutations.mutation import Mutation, Trial
from tests.check.mutations.table import MUTATIONS

# They stop the check, or concern every name: nothing else is told beside them.
ALONE = {"module-prefix", "doubled-prefix", "metas-names", "lora-unmerged", "index-drift", "pointer", "twice"}
ALONE |= {
    "two-sets",
    "copied",
    "copied-cut",
    "ghost",
    "in-no-file",
    "left-over",
    "of-other-shards",
    "cut-shard",
    "forgotten",
}
ALONE |= {"shard-left-out", "rope-type", "mixtral-twice", "mixtral-lost-shard", "deepseek-index-drift"}
# They take layers or tensors away that the other mutation would be seen in.
STRUCTURAL = {"lost-layer", "one-based", "deeper", "shallower", "compiled-layer", "fused-qkv"}
STRUCTURAL |= {"lost-scale", "renamed-scale", "scales-as-bytes", "unknown-scales"}
STRUCTURAL |= {"bloom-one-based", "mixtral-lost-expert", "deepseek-compiled", "deepseek-shared-expert"}
STRUCTURAL |= {"oss-lost-scales", "oss-scales-as-floats"}  # they bring a quantisation with them
STRUCTURAL |= {"deepseek-lost-scale", "deepseek-renamed-scales", "deepseek-unsaid"}
STRUCTURAL |= {mutation.key for mutation in COMBINATIONS}  # their sizes are in every tensor that others spoil
LOCAL = [m for m in MUTATIONS if m.phase == "check" and m.key not in ALONE | STRUCTURAL]


def concerns(mutation: Mutation) -> set[str]:
    """The parameters named, whatever the layer."""
    return {re.sub(r"\{.*?\}|\d+", "", name) for name in mutation.names.split(", ")}


def is_independent(one: Mutation, other: Mutation) -> bool:
    if one.base != other.base or concerns(one) & concerns(other):
        return False
    return not (_edits_rules(one) and _edits_rules(other))


@cache
def _edits_rules(mutation: Mutation) -> bool:
    trial = Trial(base(mutation.base))
    mutation.spoil(trial)
    return bool(trial.adapter)


PAIRS = [pair for pair in combinations(LOCAL, 2) if is_independent(*pair)]


def test_there_are_pairs_of_each_base() -> None:
    assert len(PAIRS) > 40
    assert {one.base for one, _ in PAIRS} >= {"gpt2", "llama", "mixtral", "bloom", "gpt_oss", "deepseek_v3"}


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: "+".join(m.key for m in pair))
def test_both_are_named(pair: tuple[Mutation, Mutation], tmp_path: Path) -> None:
    trial = Trial(base(pair[0].base))
    for mutation in pair:
        mutation.spoil(trial)
    findings = ask(trial.write(tmp_path / "model"), "check").findings
    assert sorted(finding.code for finding in findings) == sorted(mutation.code for mutation in pair), findings
    for mutation in pair:
        assert any(f.code == mutation.code and names(f, mutation.names) for f in findings), (mutation.names, findings)
