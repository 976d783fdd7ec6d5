"""Latent attention's two forms, each for one query and for many, and the draft's tensors beside a model's."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from bringup.compile.job import open_job
from bringup.compile.pipeline import check
from bringup.graphs.layers import mla
from tests.models import family
from tests.models.test_deepseek_v3 import CASES, save_biased


@pytest.fixture(scope="module", params=["groups-yarn", "dense-halves-biases"])
def checkpoint(request, tmp_path_factory) -> Path:
    return save_biased(CASES[request.param], tmp_path_factory.mktemp(request.param))


@pytest.mark.parametrize(("form", "other"), [("_expanded", "_absorbed"), ("_absorbed", "_expanded")])
def test_each_form_for_one_query_and_for_many(checkpoint: Path, form: str, other: str, monkeypatch) -> None:
    tokens, wanted = family.reference(checkpoint)
    seen: list[int] = []
    through = getattr(mla.LatentAttention, form)

    def watched(self: mla.LatentAttention, q_NHn: torch.Tensor, *rest: object) -> torch.Tensor:
        seen.append(q_NHn.shape[0])
        return through(self, q_NHn, *rest)

    for name in (form, other):
        monkeypatch.setattr(mla.LatentAttention, name, watched)
    ours = family.eager_logits(open_job(checkpoint=str(checkpoint)), tokens, family.PROMPT)
    assert set(seen) == {family.PROMPT, 1}
    assert len(seen) == (1 + family.STEPS) * CASES[checkpoint.name.rstrip("0123456789")].num_hidden_layers
    assert abs(ours - wanted).max() <= family.WORST["torch"] * abs(wanted).max()


DRAFT = ("enorm.weight", "hnorm.weight", "eh_proj.weight", "shared_head.norm.weight", "mlp.gate.weight")


@pytest.mark.parametrize(("layer", "fits"), [(3, True), (4, False)])
def test_the_draft_is_dropped_and_nothing_further(tmp_path: Path, layer: int, fits: bool) -> None:
    """The config says how many layers the draft has; what lies past them is nobody's."""
    folder = save_biased(CASES["groups-yarn"], tmp_path)
    tensors = load_file(folder / "model.safetensors")
    draft = {f"model.layers.{layer}.{name}": torch.zeros(4, 5) for name in DRAFT}
    save_file(tensors | draft, folder / "model.safetensors", metadata={"format": "pt"})
    job = open_job(checkpoint=str(folder))
    findings = check(job).errors
    assert [finding.code for finding in findings] == ([] if fits else ["BU105"])
    assert set(job.plan.dropped) == (draft.keys() if fits else set())
