"""Factors of a parameter, against the movement of ΔW itself, for rules that no family has."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from bringup.adapters import S, cat, scale, stack
from bringup.adapters.algebra.expr import Expr
from bringup.adapters.apply.materialise import materialise
from bringup.adapters.checkpoints.memory import dict_checkpoint
from bringup.adapters.lora.base import base_of
from bringup.adapters.lora.derive import derive
from bringup.adapters.lora.factors import LowRank, Pair
from bringup.adapters.lora.merge import delta, scale_rows
from bringup.adapters.planning.adapter import Adapter
from bringup.adapters.planning.plan import make_plan
from bringup.graphs.core.axes import sized
from bringup.graphs.core.signature import Declared, Signature

SIZES = {"h": 3, "d": 4, "m": 10, "f": 6, "e": 2}
RULES: dict[str, tuple[str, Expr]] = {
    "as it is": ("out:f in:m", S("w.weight", "out in")),
    "transposed": ("out:f in:m", S("w.weight", "in out")),
    "rows in another order": ("out:(h d) in:m", S("w.weight", "(d h) m", h=3, d=4).mv("(d h) m -> (h d) m", h=3)),
    "columns in another order": ("out:m in:(h d)", S("w.weight", "m (d h)", h=3, d=4).mv("m (d h) -> m (h d)", h=3)),
    "both": (
        "out:(h d) in:f",
        S("w.weight", "(d h) (x y)", h=3, d=4, x=2, y=3).mv("(d h) (x y) -> (h d) (f:(y x))", x=2, h=3),
    ),
    "heads apart": ("h d m", S("w.weight", "(h d) m")),
    "a part of the rows": ("out:f in:m", S("w.weight", "(f | d) m", d=4).split(0, 6, 4)[0]),
    "every second row": ("out:f in:m", S("w.weight", "(f two) m", two=2).mv("(f two) m -> two f m").at("two", 1)),
    "rows of two": ("out:(f | d) in:m", cat(S("v.weight", "out:f in:m"), S("w.weight", "out:d in:m"), axis="out")),
    "zeros behind": ("out:f in:m", S("w.weight", "rows m", rows=4).pad(0, after=2).mv("f m -> f m")),
    "experts": ("e f m", stack(S("w.{E}.weight", "f m"), over="E", n=2)),
    "experts transposed": ("e f m", stack(S("w.{E}.weight", "m f"), over="E", n=2)),
    "one column": ("out:f in:one", S("w.weight", "out in")),
    "one row": ("out:one in:m", S("w.weight", "out in")),
}
REFUSED: dict[str, tuple[str, Expr]] = {
    "rows and columns in one axis": (
        "out:(h d) in:m",
        S("w.weight", "h (d m)", h=3, d=4).mv("h (d m) -> (h d) m", d=4),
    ),
    "values": ("out:f in:m", scale(S("w.weight", "out in"), 2.0)),
}


def declared(axes: str) -> Declared:
    return Declared("p", sized(axes, SIZES | {"one": 1}), "float32")


def planned(axes: str, rule: Expr) -> tuple[Signature, Adapter]:
    adapter = Adapter("test", defaults=("out in",))
    adapter["p"] = rule
    return Signature({"p": declared(axes)}), adapter


@pytest.mark.parametrize("name", RULES)
def test_the_product_of_moved_factors_is_the_moved_product(name):
    signature, adapter = planned(*RULES[name])
    base = base_of(signature, adapter)
    random = np.random.default_rng(0)
    tensors: dict[str, np.ndarray] = {}
    changes: dict[str, np.ndarray] = {}
    pairs: list[Pair] = []
    for number, (tensor, info) in enumerate(base.tensors.items()):
        transposed = name.endswith("transposed")
        out, size = info.shape[::-1] if transposed else info.shape
        rank = 3 if "experts" in name else 3 + number
        a, b = (random.standard_normal(shape).astype(np.float32) for shape in ((rank, size), (out, rank)))
        tensors |= {f"{tensor}.A": a, f"{tensor}.B": b}
        changes[tensor] = (0.5 * b @ a).T if transposed else 0.5 * b @ a
        headers = dict_checkpoint(tensors, {}).headers
        pairs.append(
            Pair(module=tensor, target=tensor, a=headers[f"{tensor}.A"], b=headers[f"{tensor}.B"], rank=rank, scale=0.5)
        )
    lora, findings = derive(base, pairs)
    assert findings == []
    given = dict_checkpoint(changes, {})
    wanted = materialise(make_plan(signature, adapter, given.headers), given)["p"]
    found = delta(lora.sites["p"], lora.arrays(dict_checkpoint(tensors, {})))
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    assert len(lora.sites["p"]) == (2 if name == "rows of two" else 1)


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_factors_is_refused(name):
    signature, adapter = planned(*REFUSED[name])
    base = base_of(signature, adapter)
    (tensor,) = base.tensors
    out, size = base.tensors[tensor].shape
    headers = dict_checkpoint({"A": np.ones((2, size), np.float32), "B": np.ones((out, 2), np.float32)}, {}).headers
    pair = Pair(module="w", target=tensor, a=headers["A"], b=headers["B"], rank=2, scale=1.0)
    lora, findings = derive(base, [pair])
    assert [finding.code for finding in findings] == ["BU167"]
    assert lora.sites == {}


def test_dora_needs_complete_rows():
    """A parameter has half of the columns: the norms of its rows are not those of the tensor's."""
    signature, adapter = planned("out:f in:d", S("w.weight", "f (d | h)", h=3).split(1, 4, 3)[0])
    base = base_of(signature, adapter)
    (tensor,) = base.tensors
    out, size = base.tensors[tensor].shape
    arrays = {"A": np.ones((2, size), np.float32), "B": np.ones((out, 2), np.float32), "m": np.ones(out, np.float32)}
    headers = dict_checkpoint(arrays, {}).headers
    pair = Pair(module="w", target=tensor, a=headers["A"], b=headers["B"], rank=2, scale=1.0)
    assert derive(base, [pair])[1] == []
    lora, findings = derive(base, [replace(pair, magnitude=headers["m"])])
    assert [finding.code for finding in findings] == ["BU167"]
    assert "DoRA needs the norm of complete rows" in findings[0].message
    assert lora.sites == {}


def test_a_row_of_zeros_is_unchanged_by_its_magnitude():
    """The other rows are scaled, except the last, which has no magnitude."""
    factor = LowRank(parameter="p", a="a", b="b", rank=1, scale=1.0, placed=(), given=(0,), summed=(1,))
    total = np.array([[3, 4], [0, 0], [6, 8]], np.float32)
    scale_rows(total, factor, np.array([1, 2, 0], np.float32), np.array([True, True, False]))
    np.testing.assert_allclose(total, [[0.6, 0.8], [0, 0], [6, 8]], rtol=1e-6)
