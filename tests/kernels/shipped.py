"""A small launch for each kernel that bundles have: its calls, and the arrays that they read and write.

Few programs each, so that a launch is fast in the emulator; loops turn three times or more, as a missing barrier shows
only from one turn to the next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from bringup.compile.cache.store import default_store
from bringup.compile.cuda.kernel_plan import KernelPlan, planned
from bringup.compile.cuda.sampling import settings_of
from bringup.compile.cuda.trial.launches import Given, LaunchRunner, Seen
from bringup.compile.kernels.aot import compile_kernels
from bringup.compile.kernels.call import SCRATCH, KernelCall, Pointer
from bringup.compile.kernels.compiled import Compiled
from bringup.compile.kernels.select.registry import calls_of
from bringup.compile.kernels.select.sampling import ADVANCED, DRAWN, LOGITS, sampling_calls
from bringup.compile.program.program import Draw
from bringup.compile.schedule.graph.op_graph import Buffer, DType, Group, Node, OpGraph, View, whole
from bringup.graphs.core.step import BLOCK, FIELDS
from tests.kernels.attention import Case, data_of
from tests.kernels.graphs import NUMPY, Function
from tests.kernels.nodes import node_graph


@dataclass(frozen=True)
class Task:
    """A graph of one group. `arrays` has what each buffer starts with, but for what the group gives."""

    graph: OpGraph
    arrays: Mapping[str, np.ndarray]
    sampling: tuple[KernelCall, ...] = ()  # calls that no group of a graph selects


@dataclass(frozen=True)
class Built:
    """A task's kernels for one architecture."""

    task: Task
    calls: tuple[KernelCall, ...]
    plan: KernelPlan
    compiled: Mapping[str, Compiled]  # by the digest of the plan

    @property
    def texts(self) -> dict[str, str]:
        return {digest: each.assembly for digest, each in self.compiled.items()}

    def run(self, texts: Mapping[str, str] | None = None) -> tuple[Seen, dict[str, np.ndarray]]:
        """Under all observers; `texts`: the PTX by digest, where it is not the kernels' own."""
        runner = LaunchRunner(self.plan, texts or self.texts)
        return runner.watched(self.calls, buffers_of(self.task, self.calls))


def buffers_of(task: Task, calls: Sequence[KernelCall]) -> dict[str, Given]:
    """The buffers that calls point to, each with memory of its own."""
    group = task.graph.groups[0]
    names = {each.buffer for call in calls for each in call.arguments if isinstance(each, Pointer)} - {SCRATCH}
    found: dict[str, Given] = {}
    for name in sorted(names):
        buffer = task.graph.buffers[name]
        written = name in group.outputs
        content = None if written else np.ascontiguousarray(task.arrays[name]).reshape(-1).view(np.uint8)
        fixed = not written and buffer.kind in ("weight", "state", "step")
        found[name] = Given(buffer.nbytes, content, name, changed=written or name in group.updates, fixed=fixed)
    return found


def built(task: Task, capability: str) -> Built:
    calls = task.sampling or calls_of(task.graph, task.graph.groups[0], capability)
    assert calls is not None
    compiled = compile_kernels([call.kernel for call in calls], capability, default_store())
    plan = planned(capability, {task.graph.name: (calls,)}, compiled)
    return Built(task, tuple(calls), plan, {plan.kernels[kernel].digest: each for kernel, each in compiled.items()})


# --- the tasks, by name


def _of(f: Function, *names: str) -> Task:
    return Task(f.graph(*names), f.arrays)


def product(rows: int, channels: int, columns: int, dtype: str, norm: str = "") -> Task:
    """A matrix product with a norm before it and a residual after it."""
    f = Function()
    x = f.given("x", (rows, channels), dtype, "value")
    if norm:
        scale = f.given("scale", (channels,), dtype)
        settings = {"weight": scale, "eps": 1e-5, "offset": 0.0, "round_last": False}
        x = f.node("bringup.rms_norm.default", {"n": ((rows, channels), dtype)}, x=x, **settings)
    weight = f.given("weight", (columns, channels), dtype)
    y = f.node("bringup.linear.default", {"y": ((rows, columns), dtype)}, x=x, weight=weight, bias=None)
    residual = f.given("residual", (rows, columns), dtype, "value")
    f.node("aten.add.Tensor", {"out": ((rows, columns), dtype)}, self=residual, other=y, alpha=1)
    return _of(f, "out")


def gated(rows: int, inner: int, dtype: str) -> Task:
    """Gate and up of one matrix: two accumulators."""
    f, channels = Function(), 400
    x = f.given("x", (rows, channels), dtype, "value")
    weight = f.given("weight", (2 * inner, channels), dtype)
    y = f.node("bringup.linear.default", {"y": ((rows, 2 * inner), dtype)}, x=x, weight=weight, bias=None)
    gate, up = (View(y.buffer, (rows, inner), (2 * inner, 1), offset) for offset in (0, inner))
    act = f.node("bringup.silu.default", {"act": ((rows, inner), dtype)}, x=gate)
    f.node("aten.mul.Tensor", {"out": ((rows, inner), dtype)}, self=act, other=up)
    return _of(f, "out")


def normed_rows(dtype: str = "float32") -> Task:
    f, shape = Function(), (2, 1500)
    x, more = f.given("x", shape, dtype, "value"), f.given("more", shape, dtype, "value")
    scale, shift = (f.given(name, shape[1:], dtype) for name in ("scale", "shift"))
    one = f.node("bringup.layer_norm.default", {"n": (shape, dtype)}, x=x, weight=scale, bias=shift, eps=1e-5)
    f.node("aten.add.Tensor", {"out": (shape, dtype)}, self=one, other=more, alpha=1)
    return _of(f, "out")


def routing() -> Task:
    """Softmax, and the best experts of a token with their shares."""
    f, rows, experts, count = Function(), 7, 64, 6
    scores = f.given("scores", (rows, experts), kind="value")
    shape = (rows, experts), "float32"
    shares = f.node("aten.softmax.int", {"p": shape}, self=scores, dim=-1, dtype=None)
    shapes = {"chosen": ((rows, count), "int64"), "weights": ((rows, count), "float32")}
    f.node("bringup.top_experts.default", shapes, scores_NE=shares, count=count, by_NE=shares)
    return _of(f, "chosen", "weights")


def look_up() -> Task:
    f, rows = Function(), 5
    tokens = f.array("step:tokens", np.array([3, 0, 40, 3, 7]), "int64", "step")
    table = f.given("table", (41, 200))
    taken = f.node("aten.index.Tensor", {"e": ((rows, 200), "float32")}, self=table, indices=(tokens,))
    wide = f.node("aten.mul.Tensor", {"m": ((rows, 200), "float32")}, self=taken, other=6.0)
    settings = {"dtype": DType("bfloat16"), "non_blocking": False, "copy": False, "memory_format": None}
    f.node("aten.to.dtype", {"out": ((rows, 200), "bfloat16")}, self=wide, **settings)
    return _of(f, "out")


EXPERTS = {"tokens": 40, "choices": 2, "experts": 5, "rows": 12}


def sorting() -> Task:
    """The place of each token among those of its expert."""
    f, (tokens, choices, experts, rows) = Function(), EXPERTS.values()
    chosen = f.array("chosen", f.random.integers(0, experts, (tokens, choices)), "int64", "value")
    blocks = (tokens * choices + experts * (rows - 1)) // rows
    shapes = {"expert": ((blocks,), "int64"), "row": ((tokens, choices), "int64")}
    f.node("bringup.rows_of_experts.default", shapes, chosen_NK=chosen, experts=experts, R=rows)
    return _of(f, "expert", "row")


def copying() -> Task:
    """The rows of tokens, block by block of one expert."""
    from_sorting, (tokens, choices, experts, rows) = Function(), EXPERTS.values()
    chosen = from_sorting.random.integers(0, experts, (tokens, choices))
    first = sorting()
    found = Function()
    found.buffers, found.nodes = dict(first.graph.buffers), list(first.graph.groups[0].nodes)
    found.arrays = dict(first.arrays) | {"chosen": chosen}
    known = found.expected()
    g = Function()
    row = g.array("row", known["row"].astype(np.int64), "int64", "value")
    expert = g.array("expert", known["expert"].astype(np.int64), "int64", "value")
    x = g.given("x", (tokens, 37), kind="value")
    shape = (len(known["expert"]), rows, 37), "float32"
    settings = {"blocks_expert_B": expert, "blocks_row_NK": row, "blocks_rows": rows}
    g.node("bringup.to_blocks.default", {"out": shape}, x_Nm=x, **settings)
    return _of(g, "out")


def attended(case: Case) -> Task:
    data = data_of(case)
    return Task(data.graph, data.buffers)


def _step(lengths: Sequence[int], new: Sequence[int], blocks: int) -> dict[str, np.ndarray]:
    table = np.random.default_rng(5).permutation(len(lengths) * blocks).reshape(len(lengths), blocks)
    positions = [np.arange(length - count, length) for length, count in zip(lengths, new, strict=True)]
    values = {
        **{"tokens": np.zeros(sum(new)), "slots": np.zeros(sum(new)), "starts": np.cumsum([0, *new])},
        **{"positions": np.concatenate(positions), "rows": np.arange(len(lengths)), "block_table": table},
        **{"lengths": np.array(lengths), "totals": np.array(lengths)},
    }
    return {f"step_{name}": values[name].astype(np.int64) for name in FIELDS}


def latent(lengths: Sequence[int], new: Sequence[int], dtype: str) -> Task:
    """Multi-head latent attention: two products by head around attention."""
    random, heads, n, p, c, v, blocks = np.random.default_rng(1), 2, 20, 8, 40, 24, 5
    shapes = {
        **{"q_NHn": (sum(new), heads, n), "q_NHp": (sum(new), heads, p)},
        "rows_S1r": ((len(lengths) * blocks + 1) * BLOCK, 1, c + p),
        **{"to_keys_xc": (heads * n, c), "to_values_yc": (heads * v, c)},
    }
    arrays = {name: random.standard_normal(shape).astype(NUMPY[dtype]) for name, shape in shapes.items()}
    arrays |= _step(lengths, new, blocks)
    arrays["out"] = np.zeros((sum(new), heads, v), NUMPY[dtype])
    settings = {"step_decode": max(new) == 1, "step_contiguous": False, "scale": 0.1}
    return Task(node_graph("latent_attention", arrays, settings), arrays)


def scores_of_keys(dtype: str) -> Task:
    random, heads, channels, keys, new = np.random.default_rng(2), 5, 24, 64, (3, 2)
    arrays = {
        "q_NHD": random.standard_normal((sum(new), heads, channels)).astype(NUMPY[dtype]),
        "k_BLD": random.standard_normal((len(new), keys, channels)).astype(NUMPY[dtype]),
        "weights_NH": random.standard_normal((sum(new), heads)).astype(np.float32),
        **_step((20, 50), new, 1),
        "out": np.zeros((sum(new), keys), np.float32),
    }
    return Task(node_graph("index_scores", arrays, {"step_decode": False, "step_contiguous": False}), arrays)


def highest_keys() -> Task:
    random, keys = np.random.default_rng(3), 1500
    positions = np.array([1499])
    scores = np.round(random.standard_normal((len(positions), keys)), 1).astype(np.float32)
    arrays = {"scores_NL": scores, "positions_N": positions, "out": np.zeros(scores.shape, np.bool_)}
    return Task(node_graph("top_keys", arrays, {"count": 5}), arrays)


def drawing(rows: int, vocab: int, dtype: str) -> Task:
    """A token of a nucleus and the likeliest one, and the fields of the next step."""
    random = np.random.default_rng(4)
    logits = (2 * random.standard_normal((rows, vocab))).astype(NUMPY[dtype])
    fields = {name: array.astype(np.int64) for name, array in _step((40,) * rows, (1,) * rows, 1).items()}
    arrays = {
        LOGITS: logits,
        **settings_of([Draw(0.8, 0.9, 0.7), Draw(0.0, 1.0, 0.0)][:rows], rows),
        **{name: fields[f"step_{name}"] for name in ADVANCED},
        DRAWN: np.zeros(rows, np.int64),
    }
    buffers = {
        name: Buffer(name=name, shape=each.shape, dtype=each.dtype.name, kind="temporary")
        for name, each in arrays.items()
    }
    updates = tuple(name for name in ADVANCED if name != "block_table")
    node = Node(op="bringup.draw.default", names=(), arguments=(), outputs=(DRAWN,), updates=updates)
    graph = OpGraph("f", buffers, (Group((node,)),), (whole(buffers[DRAWN]),))
    return Task(graph, arrays, sampling_calls(dtype, rows, vocab, 1))


SPLIT = 300, 40  # keys of a sequence whose splits are combined, and of one that has a single split
HEADS = {"heads": 2, "groups": 1}
WIDE = {"dtype": "bfloat16", "channels": 64, **HEADS}
TASKS: dict[str, Callable[[], Task]] = {
    "linear, float32": lambda: product(1, 1100, 4, "float32", "rms"),
    "linear, bfloat16, gated": lambda: gated(1, 4, "bfloat16"),
    "linear_tile, float32": lambda: product(20, 200, 16, "float32"),
    "linear_tile, bfloat16": lambda: product(20, 400, 16, "bfloat16"),
    "linear_tile, bfloat16, 70 rows": lambda: product(70, 400, 16, "bfloat16"),
    "linear_tile, bfloat16, norm": lambda: product(5, 400, 16, "bfloat16", "rms"),
    "linear_tile, bfloat16, gated": lambda: gated(70, 16, "bfloat16"),
    "attention_decode, float32": lambda: attended(Case(lengths=SPLIT, blocks=5, has_sinks=True, **HEADS)),
    "attention_decode, bfloat16": lambda: attended(Case(lengths=SPLIT, blocks=5, **WIDE)),
    "attention_prefill, float32": lambda: attended(Case(lengths=(200,), new=(20,), blocks=5, heads=1, groups=1)),
    "attention_prefill, bfloat16": lambda: attended(Case(lengths=(200,), new=(70,), blocks=5, **WIDE)),
    "head_product, decode": lambda: latent((130,), (1,), "bfloat16"),
    "head_product, prefill": lambda: latent((130,), (20,), "float32"),
    "index_scores, bfloat16": lambda: scores_of_keys("bfloat16"),
    "top_keys": highest_keys,
    "rows_of_experts": sorting,
    "to_blocks": copying,
    "rows, layer norm": normed_rows,
    "rows, routing": routing,
    "elements, look-up": look_up,
    "draw": lambda: drawing(2, 300, "float32"),
}


@cache
def shipped(name: str, capability: str) -> Built:
    """A task of the table, compiled."""
    return built(TASKS[name](), capability)


def pairs() -> Iterator[tuple[str, str]]:
    for capability in ("sm_80", "sm_90"):
        for name in TASKS:
            yield name, capability
