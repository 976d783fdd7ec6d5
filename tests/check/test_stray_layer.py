"""One tensor of a layer far past the others: a stray name, not the number of layers that the config lacks."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from bringup.adapters.checkpoints.memory import dict_checkpoint
from bringup.compile.check import corrections
from bringup.compile.job import Job, open_job, replanned
from bringup.compile.pipeline import check
from tests.convert import models


def test_as_many_layers_are_not_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors, config = models.llama(layers=1)
    stray = "model.layers.1000.mlp.gate_proj.weight"
    tensors[stray] = tensors["model.layers.0.mlp.gate_proj.weight"]
    tried: list[object] = []

    def counted(job: Job, words: Mapping[str, object]) -> Job:
        tried.append(words["num_hidden_layers"])
        assert tried[-1] in (0, 1)
        return replanned(job, words)

    monkeypatch.setattr(corrections, "replanned", counted)
    findings = check(open_job(checkpoint=dict_checkpoint(tensors, config))).findings
    assert any(stray in str(finding) for finding in findings)
