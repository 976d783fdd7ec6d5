"""The options of an export: kinds of layers, compiled lengths, and the context."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bringup.arguments import whole, whole_numbers
from bringup.compile.job import Job
from bringup.compile.program.program import EntryPoint, Value
from bringup.diagnostics import fail
from bringup.graphs.core.graph import Graph
from bringup.graphs.core.module import Param, State
from bringup.graphs.core.step import BLOCK, CacheSizes
from bringup.grouping import grouped

# What safetensors, torch and IREE all hold. Float8 scales without a sign (e8m0) and unsigned words are not among them.
STORABLE = frozenset(
    {
        *("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"),
        *("int64", "int32", "int16", "int8", "uint8", "bool"),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What a program is made for: the paths of its layers, which of them are alike, and the lengths compiled.

    `kinds[i]` is the index of the first layer like layer i. `context` is the longest sequence in tokens,
    `max_batch_size` the largest number of sequences that a step takes in and the caches hold. `all_logits` gives the
    logits of every prefill row, not only of the last. `aux_hidden`: which hidden states are given as well, all rows: i
    is what layer i takes; the number of layers is what the head takes. `windows`: those that states have.
    `cache_blocks`: see `CacheSizes`. `max_input_len`: the longest prompt, None for the context. `carried` values go
    from layer to layer; `derives_hidden`: hidden states are computed from them by a function of the graph. `lora`:
    layers have slots of LoRAs, and each sequence chooses one; `lora_ends`: the embedding or the head has some too.
    """

    layers: Sequence[str]
    kinds: Sequence[int]
    buckets: Sequence[int]
    context: int
    all_logits: bool = False
    aux_hidden: Sequence[int] = ()
    inputs: Mapping[str, Value] = field(default_factory=dict[str, Value])
    max_batch_size: int = 1
    windows: Sequence[int] = ()
    cache_blocks: int | None = None
    max_input_len: int | None = None
    carried: int = 1
    derives_hidden: bool = False
    lora: bool = False
    lora_ends: bool = False

    @classmethod
    def of(cls, graph: Graph, *, buckets: Sequence[int], context: int, **settings: Any) -> Layout:
        _refuse_storage(graph)
        paths = [f"{graph.layer_path}.{index}" for index in range(len(graph.layers))]
        inputs = {name: ((width,), graph.dtype) for name, width in graph.inputs.items()}
        windows = sorted({leaf.window for _, leaf in graph.leaves(State) if leaf.window})
        stated: dict[str, Any] = {
            **{"layers": paths, "kinds": graph.kinds(), "inputs": inputs, "windows": windows, "carried": graph.carried},
            "derives_hidden": type(graph).hidden_state is not Graph.hidden_state,
            "lora": graph.options.max_lora_rank > 0,
            "lora_ends": any(
                leaf.axes[0].name == "lora" and not name.startswith(f"{graph.layer_path}.")
                for name, leaf in graph.leaves(State)
            ),
        }
        return cls(buckets=buckets, context=context, **stated, **settings)

    @property
    def entries(self) -> list[EntryPoint]:
        """Prefill of every bucket's length, for one sequence and for all; decode of 1, 2, 4, … sequences up to all.

        A program for one sequence reads its cache blocks in order, and gathers nothing.
        """
        most, contiguous = self.max_batch_size, self.max_batch_size == 1
        prefill = [(size, count) for count in sorted({1, most}) for size in self.buckets]
        decode = [*(1 << power for power in range((most - 1).bit_length())), most]
        points = [(size, count, False) for size, count in prefill] + [(count, count, True) for count in decode]
        return [
            EntryPoint(num_tokens=tokens, num_sequences=count, decode=one_each, contiguous=contiguous)
            for tokens, count, one_each in points
        ]

    @property
    def sizes(self) -> CacheSizes:
        """What the states hold."""
        return CacheSizes(
            context=self.context,
            sequences=self.max_batch_size,
            chunk=max(self.buckets),
            cache_blocks=self.cache_blocks,
        )

    @property
    def rewindable(self) -> int | None:
        """How many tokens of a sequence can be taken back, see `Interface`: those that rings have beyond a window."""
        rings = [(window, self.sizes.ring(window)) for window in self.windows]
        return min((ring - window + 1 for window, ring in rings if ring), default=None)

    @property
    def max_blocks(self) -> int:
        return self.sizes.blocks_each


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
    max_batch_size: int = 1,
    cache_blocks: int | None = None,
    max_input_len: int | None = None,
) -> Layout:
    """What a program for `context` tokens consists of: prefill of each bucket's length, and decode.

    Of the buckets that hold the longest prompt, only the smallest is kept. `cache_blocks`: see `CacheSizes`. Raises
    BU007 for lengths under 2, or none, BU028 for hidden states that it does not have, BU024 for a `max_batch_size` that
    is no positive integer, for a `max_input_len` that is none or exceeds the context, and for fewer `cache_blocks` than
    one sequence of the whole context needs.
    """
    max_batch_size = whole("max_batch_size", max_batch_size, least=1)
    buckets, aux_hidden = whole_numbers("buckets", buckets), whole_numbers("aux_hidden", aux_hidden)
    if not buckets or min(buckets) < 2:
        raise fail("BU007", f"prefill lengths are {list(buckets)}; give at least one, each at least 2")
    if max_input_len is not None:
        max_input_len = _max_input_len(max_input_len, context)
    longest = min((size for size in buckets if size >= (max_input_len or context)), default=max(buckets))
    useful = [size for size in sorted(buckets) if size <= longest]
    layers = len(graph.layers)
    if wrong := [index for index in aux_hidden if not 0 <= index <= layers]:
        raise fail("BU028", f"there is no hidden state {wrong[0]}: the model's {layers} layers have 0 to {layers}")
    hidden = sorted(set(aux_hidden))
    settings: dict[str, Any] = {"all_logits": all_logits, "aux_hidden": hidden, "max_batch_size": max_batch_size}
    settings["max_input_len"] = max_input_len
    if cache_blocks is not None:
        settings["cache_blocks"] = _cache_blocks(cache_blocks, CacheSizes(context=context, sequences=max_batch_size))
    return Layout.of(graph, buckets=useful, context=context, **settings)


def _max_input_len(given: int, context: int) -> int:
    """A number of tokens that fits the context."""
    count = whole("max_input_len", given, least=1)
    if count > context:
        message = f"`max_input_len` does not take {count}: the context has {context:,} tokens"
        raise fail("BU024", message, help="give a smaller one, or a larger --max-seq-len")
    return count


def _cache_blocks(given: int, largest: CacheSizes) -> int | None:
    """A number of blocks that holds one sequence; None for that of `largest`, all sequences at their full length."""
    count, least = whole("cache_blocks", given, least=1), largest.blocks_each
    if count < least:
        raise fail(
            "BU024",
            f"`cache_blocks` does not take {count}: one sequence of {largest.context:,} tokens needs {least} blocks of "
            f"{BLOCK} tokens",
            help=f"give {least} or more, or a smaller --max-seq-len",
        )
    return None if count == largest.blocks - 1 else count


def context_of(job: Job, requested: int | None) -> int:
    """How many tokens a program is made for. Raises BU007 when the model has fewer positions than asked."""
    largest = job.graph.config.max_positions
    requested = None if requested is None else whole("max_seq_len", requested)
    if requested is not None and not 1 <= requested <= largest:
        raise fail("BU007", f"--max-seq-len {requested} is not between 1 and the model's {largest}")
    return requested or min(largest, DEFAULT_CONTEXT)
