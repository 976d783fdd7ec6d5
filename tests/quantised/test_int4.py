"""AWQ, GPTQ, AutoRound and bitsandbytes: values bit for bit, slices, logits, and the published bytes back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bringup.adapters.apply.materialise import materialise
from bringup.adapters.apply.shard import divisible, slice_plan
from bringup.compile.job import Job, open_job
from bringup.compile.pipeline import check
from tests.models import family as shown
from tests.quantised.checkpoints import WHOLE_WORDS, write
from tests.quantised.int4_formats import FORMATS

FAMILIES, SLOW = list(WHOLE_WORDS), pytest.mark.slow
PAIRS = [*zip(FORMATS, FAMILIES * 4, strict=False)]
OTHERS = [(name, family) for name in FORMATS for family in FAMILIES if (name, family) not in PAIRS]
DIVIDED = ("f", "h", "g", "e", "m", "i")
INT8 = 2e-7  # of the largest: bitsandbytes multiplies by the row's scale and then by 1/127, we by their product


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("int4")


def opened(name: str, family: str, folder: Path) -> tuple[Job, Job, Path]:
    """The jobs of the quantised checkpoint and of its exact values, and the folder of these."""
    quantised, exact = write(family, FORMATS[name], folder)
    job = open_job(checkpoint=str(quantised))
    assert not check(job).findings
    return job, open_job(checkpoint=str(exact)), exact


@pytest.mark.parametrize(("name", "family"), [*PAIRS, *(pytest.param(*pair, marks=SLOW) for pair in OTHERS)])
def test_values_and_slices(name: str, family: str, folder: Path) -> None:
    job, plain, _ = opened(name, family, folder)
    arrays, wanted = materialise(job.plan, job.checkpoint), materialise(plain.plan, plain.checkpoint)
    assert arrays.keys() == wanted.keys()
    for parameter, array in arrays.items():
        worst = INT8 * np.abs(wanted[parameter]).max() if name == "int8" else 0
        np.testing.assert_allclose(array, wanted[parameter], 0, worst, err_msg=parameter)
    known = divisible(job.plan)
    axes = tuple(axis for axis in DIVIDED if axis in known and not any(size % 2 for size in known[axis]))
    for rank in range(2):
        part = slice_plan(job.plan, axes, rank, 2)
        sliced, slices = materialise(part, job.checkpoint), slice_plan(plain.plan, axes, rank, 2)
        assert sum(sliced[parameter].shape != arrays[parameter].shape for parameter in arrays) >= 8
        of_plain = materialise(slices, plain.checkpoint)
        for parameter, array in sliced.items():
            worst = INT8 * np.abs(wanted[parameter]).max() if name == "int8" else 0
            np.testing.assert_allclose(array, of_plain[parameter], 0, worst, err_msg=parameter)


@pytest.mark.parametrize(("name", "family"), PAIRS[::3])
def test_logits(name: str, family: str, folder: Path) -> None:
    """Against transformers on the exact values."""
    job, _, exact = opened(name, family, folder)
    tokens, wanted = shown.reference.__wrapped__(exact)
    ours = shown.eager_logits(job, tokens, shown.PROMPT)
    assert abs(ours - wanted).max() <= shown.WORST["torch"] * abs(wanted).max()
