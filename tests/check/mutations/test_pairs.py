"""Any two independent mutations of one checkpoint are two diagnostics, each as if it were alone."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from tests.check.mutations.answer import ask, names
from tests.check.mutations.bases import base
from tests.check.mutations.combinations import COMBINATIONS
from tests.check.mutations.mutation import Mutation, Trial
from tests.check.mutations.table import MUTATIONS

# They stop the check, or concern every name: nothing else is reported with them.
ALONE = {"module-prefix", "doubled-prefix", "metas-names", "lora-unmerged", "index-drift", "pointer", "twice"}
ALONE |= {"shard-left-out", "rope-type"}
# They take layers or tensors away that the other mutation would be seen in.
STRUCTURAL = {"lost-layer", "one-based", "deeper", "shallower", "compiled-layer", "fused-qkv"}
STRUCTURAL |= {"lost-scale", "renamed-scale", "scales-as-bytes", "unknown-scales"}
STRUCTURAL |= {"bloom-one-based", "mixtral-lost-expert", "deepseek-compiled", "deepseek-shared-expert"}
STRUCTURAL |= {"oss-lost-scales", "oss-scales-as-floats"}  # they bring a quantisation with them
STRUCTURAL |= {"deepseek-lost-scale", "deepseek-renamed-scales", "deepseek-unsaid"}
STRUCTURAL |= {mutation.key for mutation in COMBINATIONS}  # their sizes are in every tensor that others spoil


def ends_the_check(mutation: Mutation) -> bool:
    """Whether nothing else can be said: the files contradict each other, or the checkpoint is another model's."""
    return mutation.code.startswith("BU2") or mutation.code == "BU152"


LOCAL = [m for m in MUTATIONS if m.phase == "check" and m.key not in ALONE | STRUCTURAL and not ends_the_check(m)]


@dataclass(frozen=True)
class Effect:
    """What one or two mutations change: tensors with their new dtype and shape (None: removed), keys of the config,
    and which of the other inputs."""

    tensors: dict[str, tuple[str, tuple[int, ...]] | None]
    words: dict[str, Any]
    inputs: frozenset[str]


def effect_of(*mutations: Mutation) -> Effect:
    sound, trial = base(mutations[0].base), Trial(base(mutations[0].base))
    for mutation in mutations:
        mutation.spoil(trial)
    tensors = {n: None if a is None else (str(a.dtype), a.shape) for n, a in _changed(sound.tensors, trial.tensors)}
    words = dict(_changed(sound.config, trial.config, equal=operator.eq))
    inputs = {"adapter": trial.adapter, "graph": trial.graph, "model": trial.model, "folder": trial.later}
    return Effect(tensors, words, frozenset(name for name, changed in inputs.items() if changed))


def _changed(
    old: Mapping[str, Any], new: Mapping[str, Any], equal: Callable[[Any, Any], bool] = operator.is_
) -> Iterator[tuple[str, Any]]:
    for name in old.keys() | new.keys():
        if name not in old or name not in new or not equal(old[name], new[name]):
            yield name, new.get(name)


alone = cache(effect_of)


def concerns(mutation: Mutation) -> set[str]:
    """The parameters and modules named, whatever the layer; each name ends with a dot."""
    return {re.sub(r"\{.*?\}|\d+", "", name) + "." for name in mutation.names.split(", ")}


def is_independent(one: Mutation, other: Mutation) -> bool:
    """Whether the two name different places, change different things, and together change what each does alone."""
    if one.base != other.base or _meet(concerns(one), concerns(other)):
        return False
    a, b = alone(one), alone(other)
    if a.tensors.keys() & b.tensors.keys() or a.words.keys() & b.words.keys() or a.inputs & b.inputs:
        return False
    if _decides(a, other) or _decides(b, one):
        return False
    if (_says_how_matrices_are_stored(a) and b.tensors) or (_says_how_matrices_are_stored(b) and a.tensors):
        return False
    return effect_of(one, other) == Effect(a.tensors | b.tensors, a.words | b.words, a.inputs | b.inputs)


def _meet(names: set[str], others: set[str]) -> bool:
    """Whether a name of one set is a name of the other, or is within a module of the other."""
    return any(a.startswith(b) or b.startswith(a) for a in names for b in others)


def _decides(effect: Effect, mutation: Mutation) -> bool:
    """Whether an effect changes what the mutation names, or a key of the config that its mistake depends on."""
    changed = {re.sub(r"\d+", "", name) + "." for name in effect.tensors.keys() | effect.words.keys()}
    return _meet(concerns(mutation), changed) or not effect.words.keys().isdisjoint(mutation.reads)


def _says_how_matrices_are_stored(effect: Effect) -> bool:
    """Such a word is about all tensors: one that another mutation changed is measured by it."""
    return "quantization_config" in effect.words and not effect.tensors


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
