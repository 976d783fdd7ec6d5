"""Whether a model fits on devices of some memory: weights, cache and workspace of each rank.

Weights and cache are exact for what is declared. Workspace is an upper bound: no buffer of a layer is reused.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from bringup.adapters.apply.parallel import Parallel
from bringup.adapters.apply.rank_plan import FFN, HEADS, Stages
from bringup.arguments import integer
from bringup.compile.check.checker import check_job
from bringup.compile.check.ranks import Shares, divide
from bringup.compile.job import Job
from bringup.compile.packed_job import packed_shares
from bringup.diagnostics import BringupError
from bringup.graphs.core.axes import Axis, shape_of
from bringup.graphs.core.module import State
from bringup.graphs.core.step import RING_GAIN
from bringup.spec import DTYPES

# Bytes of device memory, from the manufacturers' data sheets (1 GB = 10^9 bytes).
DEVICES = {
    "a100-40": 40, "a100-80": 80, "l40s": 48, "h100": 80, "h200": 141, "b200": 180,
    "mi250x": 128, "mi300x": 192, "mi325x": 256, "mi355x": 288,
}  # fmt: skip
CHUNK = 2048  # prompt tokens of a step, unless the context is shorter
MOST_RANKS = 64  # largest group that is suggested


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """Bytes of the rank that needs most. `cache_each` is the cache of one sequence; `limit` is the usable memory."""

    limit: int
    weights: int
    cache: int
    cache_each: int
    workspace: int
    ranks: int
    largest_batch: int
    enough_ranks: int | None = None

    @property
    def total(self) -> int:
        return self.weights + self.cache + self.workspace

    @property
    def fits(self) -> bool:
        return self.total <= self.limit


def fit(
    job: Job,
    memory: int,
    *,
    parallel: Parallel,
    context: int,
    batch: int = 1,
    page_size: int = 64,
    cache_dtype: str | None = None,
    share: float = 0.9,
    packed: bool = False,
) -> Need:
    """The memory of the fullest rank on a device with `memory` bytes, of which the fraction `share` may be used.

    `context` tokens for each of `batch` sequences, cached in pages of `page_size` tokens, in `cache_dtype` or the
    dtypes that states declare. With `packed`, quantised weights of the checkpoint remain packed. Raises the findings of
    `check`, and BU045, BU130 and BU138 if ranks do not fit.
    """
    context, batch, page = (
        integer(name, value, minimum=1)
        for name, value in (("context", context), ("batch", batch), ("page_size", page_size))
    )
    check_job(job).raise_if_errors()
    shares = divide(job.plan, parallel, Stages.of(job.graph), packed=packed)
    if shares.refusals:
        raise BringupError(*shares.refusals)
    need = _need(job, shares, int(memory * share), parallel, context, batch, page, cache_dtype, packed)
    if need.fits:
        return need
    least = 0 if packed else _weight_bytes(job)
    for tp in (2**k for k in range(1, MOST_RANKS.bit_length())):
        larger = replace(parallel, tp=tp, ep=parallel.ep if parallel.ep <= tp and tp % parallel.ep == 0 else 1)
        if tp <= parallel.tp or least > need.limit * larger.size:
            continue
        shares = divide(job.plan, larger, Stages.of(job.graph), packed=packed)
        if not shares.refusals:
            other = _need(job, shares, need.limit, larger, context, batch, page, cache_dtype, packed)
            if other.fits:
                return replace(need, enough_ranks=other.ranks)
    return need


def _need(
    job: Job,
    shares: Shares,
    limit: int,
    parallel: Parallel,
    context: int,
    batch: int,
    page: int,
    cache_dtype: str | None,
    packed: bool,
) -> Need:
    stages = parallel.stages(len(job.graph.layers)) if parallel.pp > 1 else [range(len(job.graph.layers))]
    caches = [_cache(job, layers, parallel.tp, context, page, cache_dtype) for layers in stages]
    workspace = _workspace(job, parallel, min(CHUNK, context), batch)
    held = (packed_shares(job, parallel) if packed else []) or shares.nbytes
    needs = [(weights, caches[rank // parallel.stage_ranks]) for rank, weights in enumerate(held)]
    weights, each = max(needs, key=lambda pair: pair[0] + pair[1] * batch)
    room = limit - workspace - max(weights for weights, _ in needs)
    return Need(
        limit=limit, weights=weights, cache=each * batch, cache_each=each, workspace=workspace,
        ranks=parallel.size, largest_batch=max(0, room // max(caches)) if max(caches) else batch,
    )  # fmt: skip


def _weight_bytes(job: Job) -> int:
    """Bytes of the weights, each once: the least total of any number of ranks."""
    tied = job.plan.aliases()
    return sum(entry.declared.nbytes for name, entry in job.plan.entries.items() if name not in tied)


def _cache(job: Job, layers: range, tp: int, context: int, page: int, dtype: str | None) -> int:
    """Bytes of the states of some layers for one sequence on a rank."""
    total = 0
    for index in layers:
        for _, state in job.graph.layers[index].leaves(State):
            if state.of is not None:
                continue
            row = math.prod(_row(state, tp))
            if state.axes[0].name == "sequence":
                rows, stored = 1, state.declared_dtype
            else:
                rows, stored = _rows(state.window, context, page), dtype or state.declared_dtype
            total += rows * row * DTYPES[stored or job.graph.dtype].bits // 8
    return total


def _row(state: State, tp: int) -> Iterator[int]:
    """The sizes of a row's axes: heads and channels are divided, and key heads replicated if they are fewer than the
    ranks."""
    for axis in state.axes[1:]:
        yield sum(_of_rank(part, tp) for part in (axis.parts if axis.sum else (axis,)))


def _of_rank(axis: Axis, tp: int) -> int:
    size, first = shape_of((axis,))[0], next(axis.factors(set()))
    return size // first.size * max(1, first.size // tp) if first.name in (*HEADS, FFN) else size


def _rows(window: int | None, context: int, page: int) -> int:
    """Tokens in complete pages; with a window, the ring that a program has for it, if that is smaller."""
    paged = -(-context // page) * page
    ring = -(-(window + min(CHUNK, context) - 1) // page) * page if window else paged
    return ring if RING_GAIN * ring <= paged else paged


def _workspace(job: Job, parallel: Parallel, tokens: int, batch: int) -> int:
    """The logits of a step in float32, and the values that the widest layer computes for `tokens` tokens.

    These are its input, its normed input and every output of a matrix; for experts, of all that a token is routed to.
    """
    config: object = job.graph.config
    routing: object = getattr(config, "routing", None)
    chosen = int(getattr(config, "experts_per_token", 0) or getattr(routing, "per_token", 0)) or 1
    hidden = 0
    widest: dict[int, int] = {}
    stages = Stages.of(job.graph)
    for name, declared in job.plan.signature.items():
        layer, sizes = stages.layer(name), shape_of(declared.axes)
        if layer is None or len(sizes) < 2:
            continue
        names = {node.name for axis in declared.axes for node in axis.walk()}
        produces = declared.axes[0].name == "out" or declared.axes[-1].name == "tap"
        divided = parallel.tp if names & {"h", "g", "f"} and produces else 1
        outputs = sizes[-2] * (chosen if len(sizes) == 3 else 1)
        hidden = max(hidden, sizes[-1] if len(sizes) == 2 else 0)
        widest[layer] = widest.get(layer, 0) + outputs // divided
    element = DTYPES[job.graph.dtype].bits // 8
    vocabulary = -(-job.graph.config.vocab_size // parallel.tp) * parallel.tp
    return tokens * (2 * hidden + max(widest.values(), default=0)) * element + batch * vocabulary * 4
