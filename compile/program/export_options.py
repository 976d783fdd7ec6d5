"""What a program is made for: which layers are alike, the lengths compiled, and the context."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bringup.arguments import whole, whole_numbers
from bringup.compile.job import Job
from bringup.diagnostics import fail
from bringup.graphs.core.graph import Graph
from bringup.graphs.core.module import Param
from bringup.graphs.ops.attention import BLOCK
from bringup.grouping import grouped
from bringup.spec import Shape

DECODE = "decode"

# What safetensors, torch and IREE all hold. Float8 scales without a sign (e8m0) and unsigned words are not among them.
STORABLE = frozenset(
    {
        *("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"),
        *("int64", "int32", "int16", "int8", "uint8", "bool"),
    }
)
Value = tuple[Shape, str]  # what passes between stages: its shape and dtype


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What a program is made for: the paths of its layers, which of them are alike, and the lengths compiled.

    `kinds[i]` is the index of the first layer like layer i. `context` is the longest sequence in tokens. `all_logits`
    gives the logits of every prefill row, not only of the last. `aux_hidden`: which hidden states are given as well,
    all rows: i is what layer i takes; the number of layers is what the head takes.
    """

    layers: Sequence[str]
    kinds: Sequence[int]
    buckets: Sequence[int]
    context: int
    all_logits: bool = False
    aux_hidden: Sequence[int] = ()
    inputs: Mapping[str, Value] = field(default_factory=dict[str, Value])

    @classmethod
    def of(cls, graph: Graph, *, buckets: Sequence[int], context: int, **settings: Any) -> Layout:
        _refuse_storage(graph)
        paths = [f"{graph.layer_path}.{index}" for index in range(len(graph.layers))]
        inputs = {name: ((width,), graph.dtype) for name, width in graph.inputs.items()}
        return cls(layers=paths, kinds=graph.kinds(), buckets=buckets, context=context, inputs=inputs, **settings)

    @property
    def entries(self) -> list[tuple[str, int]]:
        """Name and tokens of each entry point: prefill of every bucket's length, and decode."""
        return [*((f"prefill_{size}", size) for size in self.buckets), (DECODE, 1)]

    @property
    def max_blocks(self) -> int:
        return -(-self.context // BLOCK)


def _refuse_storage(graph: Graph) -> None:
    """Raises BU303 for parameters whose arrays no target takes: sub-byte values that are not packed, and the like."""
    stored = {name: leaf.stored(graph.dtype)[1] for name, leaf in graph.leaves(Param)}
    dtypes = sorted({dtype for dtype in stored.values() if dtype not in STORABLE})
    if dtypes:
        names = [name for name, dtype in stored.items() if dtype == dtypes[0]]
        raise fail(
            "BU303",
            f"`{', '.join(grouped(names))}` would be stored as {dtypes[0]}, which no target takes",
            help='pack values of less than a byte: Param(…, dtype="int4", pack="out:8"); dequantise others in the rule',
            parameter=names[0],
        )


DEFAULT_CONTEXT = 2048
# Prefill lengths, put together by step_inputs.chunks_of. A length costs a compile some 1.5 s, and past 64 tokens gains
# nothing on a CPU: GPT-2 small takes 1.27 ms a token in runs of 32, 1.0 of 64, 0.95 of 256, 1.05 of 512.
BUCKETS = (32, 256)


def layout_of(
    graph: Graph,
    context: int,
    buckets: Sequence[int] = BUCKETS,
    *,
    all_logits: bool = False,
    aux_hidden: Sequence[int] = (),
) -> Layout:
    """What a program for `context` tokens consists of: prefill of each bucket's length, and decode.

    Of the buckets that hold the whole context, only the smallest is kept. Raises BU007 for lengths under 2, or none,
    BU028 for hidden states that it does not have.
    """
    buckets, aux_hidden = whole_numbers("buckets", buckets), whole_numbers("aux_hidden", aux_hidden)
    if not buckets or min(buckets) < 2:
        raise fail("BU007", f"prefill lengths are {list(buckets)}; give at least one, each at least 2")
    whole = min((size for size in buckets if size >= context), default=max(buckets))
    useful = [size for size in sorted(buckets) if size <= whole]
    layers = len(graph.layers)
    if wrong := [index for index in aux_hidden if not 0 <= index <= layers]:
        raise fail("BU028", f"there is no hidden state {wrong[0]}: the model's {layers} layers have 0 to {layers}")
    return Layout.of(graph, buckets=useful, context=context, all_logits=all_logits, aux_hidden=sorted(set(aux_hidden)))


def context_of(job: Job, requested: int | None) -> int:
    """How many tokens a program is made for. Raises BU007 when the model has fewer positions than asked."""
    largest = job.graph.config.max_positions
    requested = None if requested is None else whole("max_seq_len", requested)
    if requested is not None and not 1 <= requested <= largest:
        raise fail("BU007", f"--max-seq-len {requested} is not between 1 and the model's {largest}")
    return requested or min(largest, DEFAULT_CONTEXT)
