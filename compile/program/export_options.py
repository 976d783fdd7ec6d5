"""The options of an export: kinds of layers, compiled lengths, and the context."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bringup.arguments import integer, integer_list
from bringup.compile.job import Job
from bringup.compile.program.program import EntryPoint, Value
from bringup.compile.program.step_inputs import checked_tokens
from bringup.diagnostics import fail
from bringup.graphs.core.graph import OWN, Graph
from bringup.graphs.core.module import Param, State
from bringup.graphs.core.step import BLOCK, CacheSizes
from bringup.grouping import grouped

# The dtypes that safetensors, torch and IREE all support. Not among them: e8m0 scales and unsigned words.
STORABLE = frozenset(
    {
        *("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"),
        *("int64", "int32", "int16", "int8", "uint8", "bool"),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The shape of a program: the paths of its layers, the kind of each, and the compiled lengths.

    - `kinds[i]` is the index of the first layer of the same kind as layer i.
    - `buckets` are the compiled prefill lengths, `context` the longest sequence, `max_input_len` the longest prompt
      (None: the context), in tokens. `max_batch_size` is the largest number of sequences in a step and in the caches.
    - `all_logits`: logits of every prefill row, not only of the last.
    - `aux_hidden`: hidden states of all rows that are outputs too: i is the input of layer i, the number of layers
      that of the head.
    - `inputs`: the model's inputs besides tokens, without the token axis. `windows`: the sliding windows of states.
    - `cache_blocks`: see `CacheSizes`. `draft_tokens`: how many tokens of a draft a step checks for each sequence.
    - `carried`: the number of values from layer to layer. `derives_hidden`: the graph computes hidden states from them.
    - `recurrent`: the graph has states of one row for each sequence.
    - `borrowed`: the states of a layer that are those of an earlier one, see `Graph.borrowed`.
    - `lora`: layers have slots of LoRAs, one of which each sequence selects. `lora_ends`: so has the embedding or head.
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
    recurrent: bool = False
    borrowed: Mapping[str, str] = field(default_factory=dict[str, str])
    lora: bool = False
    lora_ends: bool = False
    draft_tokens: int = 0

    @classmethod
    def of(cls, graph: Graph, *, buckets: Sequence[int], context: int, **settings: Any) -> Layout:
        """The layout of a graph's program. Raises BU303 for parameters with a dtype that cannot be stored."""
        _refuse_storage(graph)
        paths = [f"{graph.layer_path}.{index}" for index in range(len(graph.layers))]
        inputs = {name: ((width,), graph.dtype) for name, width in graph.inputs.items()}
        windows = sorted({leaf.window for _, leaf in graph.leaves(State) if leaf.window})
        stated: dict[str, Any] = {
            **{
                "layers": paths,
                "kinds": graph.layer_classes(),
                "inputs": inputs,
                "windows": windows,
                "carried": graph.carried,
            },
            "derives_hidden": type(graph).hidden_state is not Graph.hidden_state,
            "recurrent": any(leaf.axes[0].name == "sequence" for _, leaf in graph.leaves(State)),
            "borrowed": graph.borrowed(),
            "lora": graph.options.max_lora_rank > 0,
            "lora_ends": any(
                leaf.axes[0].name == "lora" and not name.startswith(f"{graph.layer_path}.")
                for name, leaf in graph.leaves(State)
            ),
        }
        return cls(buckets=buckets, context=context, **stated, **settings)

    @property
    def entries(self) -> list[EntryPoint]:
        """Prefill of every bucket's length, for one sequence and for all; decode of 1, 2, 4, … sequences up to all, and
        for each of these numbers prefill of the last token and `draft_tokens` proposals of each sequence. With
        recurrent states, also of the proposals that were accepted in the step before, which are processed again.

        A program for one sequence reads its cache blocks in order, without gathering them.
        """
        most, contiguous = self.max_batch_size, self.max_batch_size == 1
        decode = [*(1 << power for power in range((most - 1).bit_length())), most]
        checked = {(count, count * self.checked_tokens) for count in decode if self.draft_tokens}
        prefill = checked | {(count, size) for count in (1, most) for size in self.buckets}
        points = [(size, count, False) for count, size in sorted(prefill)] + [(count, count, True) for count in decode]
        return [
            EntryPoint(
                num_tokens=tokens, num_sequences=count, decode=one_each, contiguous=contiguous,
                proposals=self.recurrent and not one_each and (count, tokens) in checked,
            )
            for tokens, count, one_each in points
        ]  # fmt: skip

    @property
    def checked_tokens(self) -> int:
        """The tokens of each sequence in a step that checks `draft_tokens` proposals."""
        return checked_tokens(self.draft_tokens, self.recurrent)

    @property
    def sizes(self) -> CacheSizes:
        """The sizes of the caches."""
        return CacheSizes(
            context=self.context,
            sequences=self.max_batch_size,
            chunk=max(*self.buckets, self.checked_tokens),
            cache_blocks=self.cache_blocks,
        )

    @property
    def rewindable(self) -> int | None:
        """The number of tokens of a sequence that can be removed, see `Interface`: rows of rings beyond a window. A
        state that each token changes does not keep what it was before."""
        if self.recurrent:
            return 0
        rings = [(window, self.sizes.ring(window)) for window in self.windows]
        return min((ring - window + 1 for window, ring in rings if ring), default=None)

    @property
    def max_blocks(self) -> int:
        """The number of cache blocks of the longest sequence."""
        return self.sizes.blocks_each


def _refuse_storage(graph: Graph) -> None:
    """Raises BU303 for parameters whose dtype no target supports, such as sub-byte values that are not packed."""
    stored = {name: leaf.stored(graph.dtype)[1] for name, leaf in graph.leaves(Param)}
    dtypes = sorted({dtype for dtype in stored.values() if dtype not in STORABLE})
    if dtypes:
        names = [name for name, dtype in stored.items() if dtype == dtypes[0]]
        raise fail(
            "BU303",
            f"`{', '.join(grouped(names))}` would be stored as {dtypes[0]}, which no target supports",
            help='pack values of less than a byte: Param(…, dtype="int4", pack="out:8"); dequantise others in the rule',
            parameter=names[0],
        )


DEFAULT_CONTEXT = 2048
# Prefill lengths, which step_inputs.chunks_of combines. Each adds about 1.5 s to a compile. On a CPU, lengths over 64
# gain little: GPT-2 small needs 1.27 ms per token in runs of 32, 1.0 in runs of 64, 0.95 of 256, 1.05 of 512.
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
    draft_tokens: int = 0,
) -> Layout:
    """The layout of a program for sequences of `context` tokens: prefill of each bucket's length, and decode.

    Of the buckets that fit the longest prompt, only the smallest is used. `draft_tokens` adds prefill of that many
    tokens of a draft and the one before them, and logits of every token. The last hidden state of a draft with an input
    for it is always an output. `cache_blocks`: see `CacheSizes`. Raises BU007 for no lengths, or lengths under 2; BU028
    for hidden states that the model does not have; BU024 for a negative `draft_tokens`, one that is not below the
    context, a `max_batch_size` or `max_input_len` that is not a positive integer, a `max_input_len` above the context,
    and fewer `cache_blocks` than one sequence of the full context needs.
    """
    max_batch_size = integer("max_batch_size", max_batch_size, minimum=1)
    buckets, aux_hidden = integer_list("buckets", buckets), integer_list("aux_hidden", aux_hidden)
    draft_tokens = _draft_tokens(draft_tokens, context)
    if not buckets or min(buckets) < 2:
        raise fail("BU007", f"prefill lengths are {list(buckets)}; at least one is required, each at least 2")
    all_logits = all_logits or draft_tokens > 0
    if max_input_len is not None:
        max_input_len = _max_input_len(max_input_len, context)
    longest = min((size for size in buckets if size >= (max_input_len or context)), default=max(buckets))
    useful = [size for size in sorted(buckets) if size <= longest]
    layers = len(graph.layers)
    if wrong := [index for index in aux_hidden if not 0 <= index <= layers]:
        raise fail("BU028", f"hidden state {wrong[0]} does not exist: the model's {layers} layers have 0 to {layers}")
    hidden = sorted({*aux_hidden, *([layers] if OWN in graph.inputs else [])})
    settings: dict[str, Any] = {"all_logits": all_logits, "aux_hidden": hidden, "max_batch_size": max_batch_size}
    settings |= {"max_input_len": max_input_len, "draft_tokens": draft_tokens}
    if cache_blocks is not None:
        settings["cache_blocks"] = _cache_blocks(cache_blocks, CacheSizes(context=context, sequences=max_batch_size))
    return Layout.of(graph, buckets=useful, context=context, **settings)


def _max_input_len(given: int, context: int) -> int:
    """A number of tokens, at most the context. Raises BU024."""
    count = integer("max_input_len", given, minimum=1)
    if count > context:
        message = f"`max_input_len` is {count}, but the context has {context:,} tokens"
        raise fail("BU024", message, help="reduce it, or increase --max-seq-len")
    return count


def _draft_tokens(given: int, context: int) -> int:
    """A number of proposals which, with the token before them, are at most the context. Raises BU024."""
    count = integer("draft_tokens", given, minimum=0)
    if count >= context:
        message = f"`draft_tokens` is {count:,}, but the context has {context:,} tokens, one of which precedes them"
        raise fail("BU024", message, help="reduce it, or increase --max-seq-len")
    return count


def _cache_blocks(given: int, largest: CacheSizes) -> int | None:
    """A number of blocks, enough for one sequence; None for that of `largest`: all sequences at their full length.

    Raises BU024.
    """
    count, least = integer("cache_blocks", given, minimum=1), largest.blocks_each
    if count < least:
        raise fail(
            "BU024",
            f"`cache_blocks` is {count}, but one sequence of {largest.context:,} tokens needs {least} blocks of "
            f"{BLOCK} tokens",
            help=f"use {least} or more, or reduce --max-seq-len",
        )
    return None if count == largest.blocks - 1 else count


def context_of(job: Job, requested: int | None) -> int:
    """The context of a program, in tokens. Raises BU007 if `requested` exceeds the model's positions."""
    largest = job.graph.config.max_positions
    requested = None if requested is None else integer("max_seq_len", requested)
    if requested is not None and not 1 <= requested <= largest:
        raise fail("BU007", f"--max-seq-len {requested} is not between 1 and the model's {largest}")
    return requested or min(largest, DEFAULT_CONTEXT)
