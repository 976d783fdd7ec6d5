"""The steps of a verification: prompts that reach every entry of a program, and the logits of each step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from bringup.compile.program.program import Executor, Interface
from bringup.compile.program.step_inputs import chunks_of
from bringup.compile.runtime.session import Session
from bringup.diagnostics import Diagnostic, Severity
from bringup.graphs.core.graph import Graph
from bringup.graphs.core.step import FIELDS, CacheSizes

PADDING = 3  # rows of padding in a bucket that is not quite full
FEW = 4  # decode steps after each prompt but the first


@dataclass(frozen=True, slots=True)
class Run:
    """A sequence from its start: the tokens of its prompt, and the number of decode steps after it."""

    prompt: int
    decode: int

    @property
    def end(self) -> int:
        """The number of tokens after the last step."""
        return self.prompt + self.decode


@dataclass(frozen=True, slots=True, eq=False)
class Feed:
    """One step of an entry: its arrays, and its logits, float32 [R, V], of every token or of the last.

    `decode` is that of the entry.
    """

    run: int
    entry: str
    step: Mapping[str, np.ndarray]
    logits: np.ndarray
    decode: bool = False

    @property
    def first(self) -> int:
        """The position of the step's first token."""
        return int(self.step["positions"][0])

    @property
    def end(self) -> int:
        """The number of tokens in the sequence after the step."""
        return int(self.step["lengths"][0])

    def rows(self, whole: np.ndarray) -> np.ndarray:
        """The rows [R, …] of this step's logits, from an array [T, …] of the complete sequence."""
        return whole[self.end - len(self.logits) : self.end]


def windows(graph: Graph) -> list[int]:
    """The sliding windows of a model's layers, in tokens, shortest first."""
    found: Sequence[int | None] = getattr(graph.config, "windows", ())
    return sorted({window for window in found if window})


def ring_rows(interface: Interface) -> list[int]:
    """The numbers of rows that a sequence has in the ring caches of a program, shortest first."""
    return sorted({state.shape[0] // interface.num_rows for state in interface.states if state.kind == "ring"})


def sizes_of(session: Session) -> CacheSizes:
    """The sizes of a session's caches."""
    interface = session.interface
    return CacheSizes(
        context=session.max_seq_len,
        sequences=interface.max_batch_size,
        chunk=max(entry.num_tokens for entry in interface.entries if not entry.decode),
        cache_blocks=interface.num_blocks - 1,
    )


def wrapping(ring: int, chunk: int) -> int:
    """The length of a prompt that overwrites the first rows of a ring with a full step of `chunk` tokens."""
    return ring + chunk


def plan_runs(interface: Interface, cap: int, decode: int, spans: Sequence[int]) -> list[Run]:
    """Runs of at most `cap` tokens. As far as `cap` allows, they cover each prefill entry with some padding, a prompt
    in chunks, decode past the end of a cache block, prompts longer than each ring cache, and tokens further apart than
    each of `spans` (sliding windows). A prompt of one token is a step of decode, so prompts have two.
    """
    sizes = interface.prefill_sizes()
    runs: list[Run] = []
    longer = [(size, before, size - PADDING) for size, before in zip(sizes, [0, *sizes], strict=False)]
    longer.append((cap, sizes[-1], sizes[-1] + PADDING + 2))
    for size, before, wanted in longer:
        if before >= cap:
            break
        steps = FEW if runs else decode
        shortest = max(cap - steps, (cap + 1) // 2, before + 1)  # half of a small cap is for the prompt
        prompt = min(wanted if wanted > max(before, 1) else size, shortest, size)
        runs.append(Run(prompt, min(steps, cap - prompt)))
    if reached := [ring for ring in ring_rows(interface) if ring < cap]:
        prompt = max(min(wrapping(reached[-1], sizes[-1]), cap - FEW), reached[-1] + 1)
        runs.append(Run(prompt, min(FEW, cap - prompt)))
    for span in spans:
        if max(run.prompt for run in runs) <= span < cap:
            prompt = max(min(span + PADDING, cap - FEW), span + 1)
            runs.append(Run(prompt, min(FEW, cap - prompt)))
    return runs


class _Listening:
    """An executor that records its steps and their logits.

    Each step states that its sequence has `total` tokens: the reference gets all of them at once, and RoPE may depend
    on their number.
    """

    def __init__(self, executor: Executor, total: int) -> None:
        self.executor, self.total = executor, np.array([total])
        self.steps: list[tuple[str, Mapping[str, np.ndarray], np.ndarray]] = []
        self.reset, self.states, self.set_states = executor.reset, executor.states, executor.set_states

    def step(self, entry: str, step: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        step = {**step, "totals": self.total}
        results = self.executor.step(entry, step)
        self.steps.append((entry, step, results["logits"].astype(np.float32)))
        return results


def feed(
    session: Session, tokens: Sequence[int], runs: Sequence[Run], inputs: Mapping[str, np.ndarray] | None = None
) -> list[Feed]:
    """Runs a session on prefixes of `tokens`; `inputs` [T, …] have a row for each token. Returns every step."""

    def rows(first: int, end: int) -> dict[str, np.ndarray]:
        return {name: array[first:end] for name, array in (inputs or {}).items()}

    listening = session.executor = _Listening(executor := session.executor, len(tokens))
    done: list[Feed] = []
    try:
        for index, run in enumerate(runs):
            session.reset()
            session.prefill(tokens[: run.prompt], **rows(0, run.prompt))
            for at in range(run.prompt, run.end):
                session.decode(tokens[at], **rows(at, at + 1))
            done += _feeds(index, listening, session.interface)
            listening.steps.clear()
    finally:
        session.executor = executor
        session.reset()
    return done


def _feeds(run: int, listening: _Listening, interface: Interface) -> Iterator[Feed]:
    for entry, step, logits in listening.steps:
        count = int(step["lengths"][0]) - int(step["positions"][0])
        rows = logits[:count] if interface.all_logits else logits
        yield Feed(run, entry, step, rows, interface.entry(entry).decode)


def in_fewer_steps(feeds: Sequence[Feed], chunk: int) -> Iterator[Feed]:
    """The same feeds, but up to `chunk` consecutive decode steps are one step of as many tokens.

    In float32, a graph returns the same rows for them.
    """
    for decode, group in groupby(feeds, key=lambda feed: (feed.run, feed.entry) if feed.decode else None):
        each = list(group)
        size = chunk if decode else 1
        yield from (_joined(each[at : at + size]) for at in range(0, len(each), size))


def _joined(feeds: Sequence[Feed]) -> Feed:
    """One step with the tokens of several decode steps."""
    last, count = feeds[-1], len(feeds)
    if count == 1:
        return last
    same = {name: last.step[name] for name in FIELDS if name not in ("tokens", "positions", "slots")}
    step = {
        **{name: np.concatenate([feed.step[name] for feed in feeds]) for name in last.step if name not in same},
        **same,
        "starts": np.array([0, count]),
        "certain": np.array([count]),
    }
    return Feed(last.run, last.entry, step, np.concatenate([feed.logits for feed in feeds]))


def not_covered(
    interface: Interface, feeds: Sequence[Feed], spans: Sequence[int], advice: Callable[[int], str]
) -> Iterator[Diagnostic]:
    """BU709 for everything that no step of a verification reached; `advice` states how to verify that many tokens."""
    entries = {feed.entry for feed in feeds}
    sizes = interface.prefill_sizes()
    longest = max(feed.end for feed in feeds)
    if batched := [f"`{entry.name}`" for entry in interface.entries if entry.num_sequences > 1]:
        were = "was" if len(batched) == 1 else "were"
        yield _note(f"{', '.join(batched)} {were} not run", "a verification runs one sequence at a time")
    for entry in interface.entries:
        if entry.num_sequences == 1 and entry.name not in entries:
            needed = longest + 1 if entry.decode else _least(entry.num_tokens, sizes)
            yield _note(f"`{entry.name}` was not run", advice(needed))
    for ring in ring_rows(interface):
        if longest <= ring:
            message = f"the prompt and the decoded tokens ({longest}) do not fill the ring cache of {ring} rows"
            yield _note(message, advice(wrapping(ring, sizes[-1])))
    for span in spans:
        if longest <= span:
            yield _note(
                f"the prompt and the decoded tokens ({longest}) do not exceed the sliding window ({span})",
                advice(span + 1),
            )


def _least(size: int, sizes: Sequence[int]) -> int:
    """The length of the shortest prompt whose chunks use an entry of this length; see `step_inputs.chunks_of`.

    A chunk of one token is a step of decode.
    """

    def uses(count: int) -> bool:
        return any(tokens > 1 and length == size for tokens, length in chunks_of(count, sizes))

    return next(filter(uses, range(2, size + 1)), size)


def _note(message: str, help: str) -> Diagnostic:
    return Diagnostic(code="BU709", severity=Severity.NOTE, message=message, help=help)
