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


def test_ranks_that_would_cut_a_block_are_refused(written):
    """gpt-oss: rows of 2880 are 90 blocks of 32, which 8 ranks cannot have whole; its 90 blocks and 64 heads have 2 in
    common."""
    folder, _ = written("gpt-oss-120b")
    [finding] = check(folder, "--tp", "8").report["findings"]
    assert (finding["code"], finding["parameter"]) == ("BU136", "model.layers.0.mlp.experts.down_proj")
    assert "splitting `f` (2880) over 8 ranks gives 360 each" in finding["message"]
    assert "blocks of 32" in finding["message"]
    assert "pad it to 3072" in finding["help"]
    assert finding["help"].endswith("every axis divides among 2 ranks")
    assert check(folder, "--tp", "2").code == 0


LARGE = ["qwen3-235b-a22b", "deepseek-v3", "deepseek-v3.2", "glm-4.5"]  # tens of thousands of tensors


@pytest.mark.parametrize(
    "name", ["llama-3.1-405b", "bloom-176b", *(pytest.param(name, marks=pytest.mark.slow) for name in LARGE)]
)
def test_eight_ranks_hold_each_an_equal_part(written, name):
    """At least an eighth of all, and less than an eighth more."""
    folder, _ = written(name)
    whole, part = (check(folder, "--tp", ranks).report["bytes_per_rank"] for ranks in ("1", "8"))
    assert len(set(part)) == 1
    assert len(part) == 8
    assert whole[0] / 8 <= part[0] < whole[0] * 9 / 64


@pytest.mark.parametrize(
    ("name", "lost"),
    [
        ("mixtral-8x22b", "model.layers.55.block_sparse_moe.experts.3.w2.weight"),
        pytest.param(
            "deepseek-v3", "model.layers.60.mlp.experts.255.down_proj.weight_scale_inv", marks=pytest.mark.slow
        ),
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
