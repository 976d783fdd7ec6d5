"""Every format in a dense family, one with fused projections, a mixture of experts and MLA, bit for bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bringup.adapters.apply.materialise import materialise
from bringup.adapters.apply.shard import divisible, slice_plan
from bringup.compile.job import open_job
from bringup.compile.pipeline import check
from tests.models import family as shown
from tests.quantised.checkpoints import CASES, write
from tests.quantised.formats import FORMATS

FAMILIES, SLOW = list(CASES), pytest.mark.slow
DIVIDED = ("f", "h", "g", "e", "m", "i")  # rows of some matrices and columns of others


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("quantised")


PAIRS = [*zip(FORMATS, FAMILIES * 6, strict=False)]  # each format in one family, each family in five formats
OTHERS = [(name, family) for name in FORMATS for family in FAMILIES if (name, family) not in PAIRS]
# The rules of a family with fused heads do not state how many rows a matrix has: its tensors do, here one of [rows].
FUSED_HEADS = [("modelopt-fp8-rows", "gpt_neox of words")]


@pytest.mark.parametrize(
    ("name", "family"), [*PAIRS, *FUSED_HEADS, *(pytest.param(*pair, marks=SLOW) for pair in OTHERS)]
)
def test_values(name: str, family: str, folder: Path) -> None:
    """The parameters are those of the checkpoint of exact values; a slice of them reads and gives its part."""
    quantised, exact = write(family, FORMATS[name], folder)
    job, plain = open_job(checkpoint=str(quantised)), open_job(checkpoint=str(exact))
    assert not check(job).findings
    arrays, wanted = materialise(job.plan, job.checkpoint), materialise(plain.plan, plain.checkpoint)
    assert arrays.keys() == wanted.keys()
    for parameter, array in arrays.items():
        np.testing.assert_array_equal(array, wanted[parameter], parameter)
    known = divisible(job.plan)
    axes = tuple(axis for axis in DIVIDED if axis in known and not any(size % 2 for size in known[axis]))
    for rank in range(2):
        part, of_plain = slice_plan(job.plan, axes, rank, 2), slice_plan(plain.plan, axes, rank, 2)
        sliced, wanted = materialise(part, job.checkpoint), materialise(of_plain, plain.checkpoint)
        assert sum(sliced[parameter].shape != arrays[parameter].shape for parameter in arrays) >= 8
        for parameter, array in sliced.items():
            np.testing.assert_array_equal(array, wanted[parameter], parameter)


@pytest.mark.parametrize(("name", "family"), PAIRS[2::3])
def test_logits(name: str, family: str, folder: Path) -> None:
    """Against transformers on the exact values; some formats in each family, as the values of all are compared."""
    quantised, exact = write(family, FORMATS[name], folder)
    tokens, wanted = shown.reference.__wrapped__(exact)
    ours = shown.eager_logits(open_job(checkpoint=str(quantised)), tokens, shown.PROMPT)
    assert abs(ours - wanted).max() <= shown.WORST["torch"] * abs(wanted).max()
