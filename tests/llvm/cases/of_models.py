"""Forms for the layers of models: products, norms, softmax, positions, selection of experts, writes to caches.

Sizes are arguments of these kernels, so each draw has other sizes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import ml_dtypes
import numpy as np

from bringup.compile.schedule.graph.op_graph import View
from tests.kernels.graphs import NUMPY
from tests.llvm.cases.drawn import FINITE, FLOATS, Against, Draw, Drawn, Form, Random, Wanted, floats
from tests.llvm.native import separate

SUMMED = Against("terms", 16.0)
ORDERED = ("plain", "zeros", "tiny", "wide")
Sized = Callable[[Drawn, Random], Against]


def _sized(name: str, build: Sized) -> Form:
    """A form whose function is built anew for each draw."""

    def draw(random: Random, distribution: str) -> Draw:
        f = Drawn(random)
        return f.form(name, build(f, random)).draw(random, distribution)

    return Form(name, draw)


def linear(r: Random) -> Form:
    """Rows with gaps, of one token to more than a block; sometimes none."""
    dtype, has_bias, few = str(r.choice(FLOATS)), bool(r.random() < 0.5), bool(r.random() < 0.5)

    def build(f: Drawn, r: Random) -> Against:
        rows, columns = int(r.integers(1, 9) if few else r.integers(9, 40)), int(r.integers(1, 80))
        channels, gap = int(r.integers(1, 160)), int(r.choice([0, 3]))
        rows = 0 if r.random() < 0.02 else rows
        f.floats("x", (rows, channels + gap), dtype)
        weight = f.floats("w", (columns, channels), dtype, kind="weight", distributions=FINITE)
        bias = f.floats("b", (columns,), dtype, kind="weight") if has_bias else None
        x = View("x", (rows, channels), (channels + gap, 1), gap)
        f.node("bringup.linear.default", {"y": ((rows, columns), dtype)}, x=x, weight=weight, bias=bias)
        return SUMMED

    return _sized("linear", build)


def bmm(r: Random) -> Form:
    dtype, turned, few = str(r.choice(FLOATS)), bool(r.random() < 0.5), bool(r.random() < 0.5)

    def build(f: Drawn, r: Random) -> Against:
        batches, rows = int(r.integers(1, 5)), int(r.integers(1, 9) if few else r.integers(9, 20))
        channels, columns = int(r.integers(1, 40)), int(r.integers(1, 60))
        x = f.floats("x", (batches, rows, channels), dtype)
        f.floats(
            "w", (batches, columns, channels) if turned else (batches, channels, columns), dtype, distributions=FINITE
        )
        strides = (channels * columns, 1, channels) if turned else (channels * columns, columns, 1)
        matrices = View("w", (batches, channels, columns), strides)
        f.node("aten.bmm.default", {"y": ((batches, rows, columns), dtype)}, self=x, mat2=matrices)
        return SUMMED

    return _sized("bmm", build)


def norm(r: Random) -> Form:
    """Also of the heads of a wider product, and of rows of zeros."""
    dtype, is_layer, last = str(r.choice(FLOATS)), bool(r.random() < 0.4), bool(r.random() < 0.5)
    offset, name = float(r.choice([0.0, 1.0])), "layer_norm" if is_layer else "rms_norm"

    def build(f: Drawn, r: Random) -> Against:
        rows, heads, width = int(r.integers(1, 12)), int(r.integers(1, 4)), int(r.integers(2, 300))
        gap, shape = int(r.choice([0, 5])), (rows, heads, width)
        f.floats("x", (rows, heads * width + gap), dtype)
        x = View("x", shape, (heads * width + gap, width, 1), gap)
        weight = f.floats("w", (width,), dtype, kind="weight", distributions=())
        shapes = {"y": (shape, dtype)}
        if is_layer:
            bias = f.floats("b", (width,), dtype, kind="weight", distributions=())
            f.node("bringup.layer_norm.default", shapes, x=x, weight=weight, bias=bias, eps=1e-5)
            return Against("largest", 64.0)
        f.node("bringup.rms_norm.default", shapes, x=x, weight=weight, eps=1e-5, offset=offset, round_last=last)
        if dtype == "float16":  # what is normed is rounded before it is multiplied
            return Against("itself", 2.0**15, least=2.0**-14, times="w")
        return Against("itself", 64.0 if dtype == "float32" else 2.0**16)

    return _sized(name, build)


def softmax(r: Random) -> Form:
    """Also of rows that are masked as a whole, or but for one number."""
    dtype = str(r.choice(FLOATS))

    def build(f: Drawn, r: Random) -> Against:
        rows, width = int(r.integers(1, 12)), int(r.integers(1, 300))

        def masked(q: Random, distribution: str) -> np.ndarray:
            x = floats(q, (rows, width), distribution, dtype).astype(np.float64)
            hidden = q.random(rows) < 0.3
            x[hidden] = -np.inf
            x[hidden & (q.random(rows) < 0.5), int(q.integers(width))] = 1.5
            return x

        x = f.numbers("x", masked, dtype)
        f.node("aten.softmax.int", {"y": ((rows, width), dtype)}, self=x, dim=-1, dtype=None)
        return Against("itself", 64.0)

    return _sized("softmax", build)


def rope(r: Random) -> Form:
    dtype, interleaved = str(r.choice(FLOATS)), bool(r.random() < 0.5)

    def build(f: Drawn, r: Random) -> Against:
        tokens, heads, pairs = (int(r.integers(1, most)) for most in (9, 6, 33))
        shape = tokens, heads, 2 * pairs + int(r.choice([0, 0, 3]))
        x = f.floats("x", shape, dtype)
        cos, sin = (f.floats(name, (tokens, pairs), "float32", distributions=()) for name in ("cos", "sin"))
        f.node("bringup.rope.default", {"y": (shape, dtype)}, x_NHK=x, cos_NC=cos, sin_NC=sin, interleaved=interleaved)
        return Against("largest", 4.0)

    return _sized("rope", build)


def routing(r: Random) -> Form:
    """The best experts, of equal ones the first, by scores or by others; and the groups that stay."""
    dtype, way = str(r.choice(FLOATS)), int(r.integers(3))

    def groups(f: Drawn, r: Random) -> Against:
        tokens, count, each = (int(n) for n in r.integers(1, (20, 6, 9)))
        shape, best = (tokens, count * each), int(r.integers(1, min(each, 2) + 1))
        given = {"groups": count, "topk_groups": int(r.integers(1, count + 1)), "best": best}
        scores = f.floats("s", shape, "float32", distributions=())
        f.node("bringup.keep_best_groups.default", {"y": (shape, "float32")}, scores_NE=scores, **given)
        return Against()

    def draw(random: Random, distribution: str) -> Draw:
        f, tokens, number = Drawn(random), int(random.integers(1, 20)), int(random.integers(2, 40))
        count, shape = int(random.integers(1, min(number, 8) + 1)), (tokens, number)
        tied = np.where(random.random(shape) < 0.2, -np.inf, np.round(2 * random.standard_normal(shape)))
        own = f.given("s", shape, dtype, "temporary") if way else f.array("s", tied.astype(NUMPY[dtype]), dtype)
        by = f.array("o", tied.astype(np.float32), "float32") if way else None
        shapes = {"chosen": ((tokens, count), "int64"), "y": ((tokens, count), dtype)}
        f.node("bringup.top_experts.default", shapes, scores_NE=own, count=count, by_NE=by)
        best = np.argsort(-tied, axis=1, kind="stable")[:, :count]
        weights = np.take_along_axis(f.arrays["s"].astype(np.float64), best, 1)
        wanted = {"chosen": Wanted(best.astype(np.float64)), "y": Wanted(weights)}
        return Draw(separate(f.graph("chosen", "y")), f.started(), wanted)

    return _sized("keep_best_groups", groups) if way == 2 else Form("top_experts", draw)


def write_cache(r: Random) -> Form:
    """Rows go to their slots; what a narrower dtype cannot hold becomes its largest number, and NaN stays NaN."""
    cached, dtype = str(r.choice(FLOATS)), str(r.choice(FLOATS))

    def draw(random: Random, distribution: str) -> Draw:
        tokens, heads, channels, slots = (int(n) for n in random.integers(1, (9, 4, 20, 30)))
        tokens, gap, f = min(tokens, slots), int(random.choice([0, 2])), Drawn(random)
        cache = f.floats("cache", (slots, heads, channels), cached, kind="state", distributions=())
        f.array("rows", floats(random, (tokens, heads * channels + gap), distribution, dtype), dtype, "temporary")
        at = random.permutation(slots)[:tokens]
        view = View("rows", (tokens, heads, channels), (heads * channels + gap, channels, 1), gap)
        places = f.array("slots", at.astype(np.int64), "int64", "step")
        f.node("bringup.write_cache.default", {}, cache_SGK=cache, slots_N=places, rows_NGK=view)
        wanted = f.arrays["cache"].copy()
        wide = f.arrays["rows"][:, gap:].astype(np.float32).reshape(tokens, heads, channels)
        largest, own = (float(ml_dtypes.finfo(NUMPY[each]).max) for each in (cached, dtype))
        if largest < own:
            wide = np.clip(wide, -largest, largest)
        wanted[at] = wide.astype(wanted.dtype)
        return Draw(separate(f.graph()), f.started(), {"cache": Wanted(wanted.astype(np.float64))})

    return Form("write_cache", draw)


def experts(r: Random) -> Form:
    """Tokens sorted into blocks of experts, multiplied, weighted and summed; experts that nobody chose are NaN."""
    dtype, height, has_bias = str(r.choice(FLOATS)), int(r.choice([1, 1, 3, 12])), bool(r.random() < 0.5)
    each = int(r.integers(1, 5))
    return Form("experts", partial(_experts, dtype, height, each, has_bias=has_bias))


def _experts(dtype: str, height: int, each: int, r: Random, distribution: str, *, has_bias: bool) -> Draw:
    tokens, number, m, o = (int(n) for n in r.integers((1, each, 1, 1), (24, 10, 50, 60)))
    distribution = (
        distribution if distribution in ORDERED and (distribution != "tiny" or dtype == "float32") else "plain"
    )  # products are rounded
    used = max(each, int(r.integers(1, number + 1)))
    chosen = np.stack([r.permutation(used)[:each] for _ in range(tokens)]).astype(np.int64)
    blocks = tokens * each if height == 1 else (tokens * each + number * (height - 1)) // height
    f = Drawn(r)
    x = f.array("x", floats(r, (tokens, m + 4), distribution, dtype), dtype, "temporary")
    x = View("x", (tokens, m), (m + 4, 1), 3)
    weights = f.given("shares", (tokens, each))
    weight, bias = f.given("w", (number, o, m), dtype), f.given("bias", (number, o), dtype) if has_bias else None
    for name in ("w", "bias") if has_bias else ("w",):
        f.arrays[name][[n for n in range(number) if n not in chosen]] = np.nan
    own = f.array("chosen", chosen, "int64", "temporary")
    shapes = {"expert": ((blocks,), "int64"), "row": ((tokens, each), "int64")}
    expert = f.node("bringup.rows_of_experts.default", shapes, selected_NK=own, experts=number, R=height)
    row = View("row", (tokens, each), (each, 1))
    of_blocks = {"blocks_expert_B": expert, "blocks_row_NK": row, "blocks_rows": height}
    rows = f.node("bringup.to_blocks.default", {"b": ((blocks, height, m), dtype)}, x_Nm=x, **of_blocks)
    y = f.node(
        "bringup.expert_linear.default", {"y": ((blocks, height, o), dtype)},
        x_BRi=rows, weight_eoi=weight, bias_eo=bias, expert_B=expert,
    )  # fmt: skip
    f.node("bringup.from_blocks.default", {"z": ((tokens, o), dtype)}, y_BRm=y, weights_NK=weights, **of_blocks)
    wide = {name: np.asarray(array, np.float64) for name, array in f.arrays.items()}
    wanted, sizes = (_mixed(wide, chosen, change) for change in (np.asarray, np.abs))
    steps = 16.0 + (2.0**15 if dtype == "bfloat16" else 2.0**12 if dtype == "float16" else 0.0)  # products are rounded
    return Draw(separate(f.graph("z")), f.started(), {"z": Wanted(wanted, steps, sizes)})


def _mixed(wide: dict[str, np.ndarray], chosen: np.ndarray, change: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Token by token, by numpy."""
    products = np.einsum("nkom,nm->nko", change(wide["w"])[chosen], change(wide["x"])[:, 3:-1])
    if "bias" in wide:
        products = products + change(wide["bias"])[chosen]
    return np.einsum("nko,nk->no", products, change(wide["shares"]))
