"""The two forms of MLA, each for one query and for many, and a checkpoint with the tensors of a model and its draft."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from bringup.compile.job import open_job
from bringup.compile.pipeline import check
from bringup.compile.program.step_inputs import sequence_step
from bringup.graphs.core.step import BLOCK, Step
from bringup.graphs.ops.attention import row_attention
from bringup.graphs.ops.latent_attention import absorbed, cheaper_form, latent_attention
from bringup.graphs.ops.lowering import OpLowering, using
from tests.models import family
from tests.models.test_deepseek_v3 import CASES, save_biased


@pytest.fixture(scope="module", params=["groups-yarn", "dense-halves-biases"])
def checkpoint(request, tmp_path_factory) -> Path:
    return save_biased(CASES[request.param], tmp_path_factory.mktemp(request.param))


@pytest.mark.parametrize("form", [latent_attention.reference, absorbed, cheaper_form], ids=lambda form: form.__name__)
def test_each_form_for_one_query_and_for_many(checkpoint: Path, form: Callable[..., torch.Tensor]) -> None:
    tokens, wanted = family.reference(checkpoint)
    seen: list[int] = []

    def watched(q_NHn: torch.Tensor, *rest: object, **more: object) -> torch.Tensor:
        seen.append(q_NHn.shape[0])
        return form(q_NHn, *rest, **more)

    with using(OpLowering(implementations={"latent_attention": watched})):
        ours = family.eager_logits(open_job(checkpoint=str(checkpoint)), tokens, family.PROMPT)
    assert set(seen) == {family.PROMPT, 1}
    assert len(seen) == (1 + family.STEPS) * CASES[checkpoint.name.rstrip("0123456789")].num_hidden_layers
    assert abs(ours - wanted).max() <= family.WORST["torch"] * abs(wanted).max()


@pytest.mark.parametrize(("count", "decode", "keys"), [(1, True, 1), (1, False, 1), (7, False, 1), (8, False, 3)])
def test_the_cheaper_form(count: int, decode: bool, keys: int) -> None:
    """With c = 16 channels and n + v = 10 of each head, the absorbed form takes fewer products up to 160 / 22 queries.

    It attends to a single head's keys; the direct form to those of all H heads.
    """
    H, n, p, v, c = 3, 4, 2, 6, 16
    arrays = sequence_step([0] * count, 5, count, BLOCK)
    step = Step(**{name: torch.from_numpy(array) for name, array in arrays.items()}, decode=decode)
    random = torch.Generator().manual_seed(0)
    shapes = (count, H, n), (count, H, p), (2 * BLOCK, 1, c + p), (H * n, c), (H * v, c)
    tensors = [torch.randn(shape, generator=random) for shape in shapes]
    heads: list[int] = []

    def watched(q_NHK: torch.Tensor, k_BLGK: torch.Tensor, *rest: object, **more: object) -> torch.Tensor:
        heads.append(k_BLGK.shape[2])
        return row_attention.reference(q_NHK, k_BLGK, *rest, **more)

    with using(OpLowering(implementations={"row_attention": watched})):
        mixed = cheaper_form(*tensors, step, 0.4)
    assert heads == [keys]
    torch.testing.assert_close(mixed, latent_attention(*tensors, step, 0.4), rtol=1e-4, atol=1e-4)


DRAFT = ("enorm.weight", "hnorm.weight", "eh_proj.weight", "shared_head.norm.weight", "mlp.gate.weight")


@pytest.mark.parametrize(("layer", "fits"), [(3, True), (4, False)])
def test_the_draft_is_dropped_and_nothing_further(tmp_path: Path, layer: int, fits: bool) -> None:
    """The config states how many layers the draft has; what lies past them is nobody's."""
    folder = save_biased(CASES["groups-yarn"], tmp_path)
    tensors = load_file(folder / "model.safetensors")
    draft = {f"model.layers.{layer}.{name}": torch.zeros(4, 5) for name in DRAFT}
    save_file(tensors | draft, folder / "model.safetensors", metadata={"format": "pt"})
    job = open_job(checkpoint=str(folder))
    findings = check(job).errors
    assert [finding.code for finding in findings] == ([] if fits else ["BU105"])
    assert set(job.plan.dropped) == (draft.keys() if fits else set())
