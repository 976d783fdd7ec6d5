"""Faults within a stack of experts, of one matrix each and of two that are joined."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bringup.compile.verify.command import verify
from tests.check.conftest import small
from tests.check.drafts import FUSED, MIXTRAL, Draft, Family, write_draft
from tests.check.faults import hole
from tests.check.test_faults import checked

GATE = "block_sparse_moe.experts.{}.w1.weight"


PARTS = {"mixtral": "gate_proj", "fused": "w13"}  # the parameter that GATE is in


@pytest.fixture(params=[MIXTRAL, FUSED], ids=lambda family: family.name)
def mixtral(request: pytest.FixtureRequest) -> Draft:
    return small(request.param).copy()


@pytest.mark.parametrize("family", [pytest.param(MIXTRAL, marks=pytest.mark.slow), FUSED], ids=lambda each: each.name)
def test_logits_are_those_of_transformers(family: Family, tmp_path: Path) -> None:
    sound = small(family).copy()
    parity = verify(family.model or "mixtral", str(write_draft(sound, tmp_path / "mixtral")), target="torch")
    assert parity.ok, parity


def test_one_expert_in_integers(mixtral: Draft) -> None:
    name = mixtral.name(GATE.format(2), 1)
    mixtral.replace(name, mixtral.tensors[name].astype(np.int32))
    (finding,) = checked(mixtral).findings
    assert (finding.code, finding.sources, finding.actual) == ("BU108", (name,), "int32")
    assert finding.parameter == f"model.layers.1.mlp.experts.{PARTS[mixtral.family.name]}"


def test_a_hole_does_not_hide_another_expert_that_is_transposed(mixtral: Draft) -> None:
    name = mixtral.name(GATE.format(3), 0)
    mixtral.replace(name, mixtral.tensors[name].T)
    (alone,) = checked(mixtral).findings
    answer = hole(mixtral)
    missing, shape = checked(mixtral).findings
    assert (missing.code, missing.parameter) == (answer.code, answer.parameter)
    assert shape.sources == alone.sources == (name,)
    assert "the other way round" in shape.help


def test_the_last_expert_is_missing(mixtral: Draft) -> None:
    for layer in range(mixtral.depth):
        for matrix in ("w1", "w2", "w3"):
            del mixtral.tensors[mixtral.name(f"block_sparse_moe.experts.3.{matrix}.weight", layer)]
    (finding,) = checked(mixtral).findings
    ends = "is 4, and the checkpoint ends at model.layers.0.block_sparse_moe.experts.2: set it to 3, or "
    assert finding.help.startswith(f"`num_local_experts` of config.json {ends}")


def test_an_expert_too_many(mixtral: Draft) -> None:
    for layer in range(mixtral.depth):
        for matrix in ("w1", "w2", "w3"):
            old = mixtral.name(f"block_sparse_moe.experts.0.{matrix}.weight", layer)
            mixtral.tensors[mixtral.name(f"block_sparse_moe.experts.4.{matrix}.weight", layer)] = mixtral.tensors[old]
    (finding,) = checked(mixtral).findings
    assert finding.code == "BU105"
    assert "model.layers.{0..1}.block_sparse_moe.experts.4" in finding.message
