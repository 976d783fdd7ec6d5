"""The largest published checkpoint of each family, header by header: it is the published one, and `check` passes it."""

from __future__ import annotations

import math
from collections import Counter

import pytest

from tests.flagships.headers import nbytes, write
from tests.flagships.measured import check
from tests.flagships.published import BY_NAME

MOST = 400_000_000  # bytes that a check may take
EVERY = pytest.mark.parametrize("name", BY_NAME)


@EVERY
def test_headers_are_those_that_were_published(written, name):
    """Each figure of published.py, so that a check of them says something of the real files."""
    flagship, (_, tensors) = BY_NAME[name], written(name)
    elements: Counter[str] = Counter()
    for dtype, shape in tensors.values():
        elements[dtype] += math.prod(shape)
    assert flagship.tensors in (None, len(tensors))
    assert flagship.elements in (None, elements.total())
    assert flagship.nbytes in (None, nbytes(tensors))
    assert flagship.by_dtype in (None, dict(elements))


@EVERY
def test_check_passes(written, name):
    folder, tensors = written(name)
    found = check(folder)
    assert found.report["findings"] == []
    assert found.code == 0
    counts = found.report["counts"]
    assert counts["tensors"] == counts["consumed"] + counts["dropped"] == len(tensors)
    assert found.peak < MOST
    assert not found.modules & {"torch", "numpy", "transformers", "iree"}


def test_ranks_divide_what_is_large_and_hold_the_rest(written):
    """Mixtral: an eighth of every matrix, each rank one of the eight key heads, and the norms and routers whole."""
    folder, tensors = written("mixtral-8x22b")
    found = check(folder, "--tp", "8")
    whole = {name: tensor for name, tensor in tensors.items() if "norm" in name or name.endswith("gate.weight")}
    assert found.report["bytes_per_rank"] == [(nbytes(tensors) - nbytes(whole)) // 8 + nbytes(whole)] * 8


@pytest.mark.parametrize(
    ("name", "lost"),
    [
        ("mixtral-8x22b", "model.layers.55.block_sparse_moe.experts.3.w2.weight"),
        ("deepseek-v3", "model.layers.60.mlp.experts.255.down_proj.weight_scale_inv"),
        ("gpt-oss-120b", "model.layers.17.mlp.experts.gate_up_proj_scales"),
    ],
)
def test_a_tensor_that_is_lost_is_named(written, tmp_path, name, lost):
    """One among 92,000."""
    tensors = {other: tensor for other, tensor in written(name)[1].items() if other != lost}
    found = check(write(tmp_path, BY_NAME[name], tensors))
    assert found.code == 1
    assert [finding["code"] for finding in found.report["findings"]] == ["BU101"]
    assert lost in found.report["findings"][0]["sources"]
