"""A program whose logits are a hash of a sequence's cache: a single wrong row changes the result."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from bringup.compile.program.program import Entry, Interface, StateSpec
from bringup.compile.program.step_inputs import checked_tokens
from bringup.compile.runtime.batch import Batch
from bringup.compile.runtime.opening import Opened
from bringup.compile.runtime.request import Request
from bringup.compile.runtime.session import Session
from bringup.graphs.core.step import BLOCK

VOCABULARY = 30
NONE = -1


def logits_of(rows: Sequence[tuple[int, int]]) -> np.ndarray:
    """Of a sequence whose cache holds these (token, length that it depends on)."""
    return _logits(hashlib.sha256(np.array(rows, np.int64).tobytes()).digest())


@cache
def _logits(digest: bytes) -> np.ndarray:
    """A generator takes longer than a lookup: the program and `expected` hash the same rows."""
    logits = np.random.default_rng(int.from_bytes(digest[:8])).standard_normal(VOCABULARY).astype(np.float32)
    logits.flags.writeable = False
    return logits


class Exact:
    """An executor. `fault` is called before each step; `seen` maps a sequence's total to what its states depend on."""

    def __init__(self, interface: Interface, seen: Callable[[int], int]) -> None:
        self.interface, self.seen = interface, seen
        self.steps: list[tuple[str, int, int]] = []  # entry, sequences, tokens
        self.fault: Callable[[], None] = lambda: None
        self.reset()

    def reset(self) -> None:
        self.rows = np.full((self.interface.num_blocks * BLOCK, 2), NONE)
        self.recurrent: dict[int, list[tuple[int, int]]] = {}  # by row of the states: all tokens that it contains

    def step(self, entry: str, step: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        found = self.interface.entry(entry)
        assert step["tokens"].shape == (found.num_tokens,)
        assert step["block_table"].shape[0] == found.num_sequences
        starts = step["starts"]
        used = [b for b in range(found.num_sequences) if starts[b + 1] > starts[b]]
        self.steps.append((entry, len(used), int(starts[-1])))
        every = self.interface.all_logits and not found.decode
        logits = np.zeros((found.num_tokens if every else found.num_sequences, VOCABULARY), np.float32)
        self.fault()
        for b in used:
            for n in range(starts[b], starts[b + 1]):
                self.rows[step["slots"][n]] = step["tokens"][n], self.seen(int(step["totals"][b]))
        for b in used:
            at = np.arange(step["lengths"][b])
            slots = step["block_table"][b][at // BLOCK] * BLOCK + at % BLOCK
            assert step["slots"][starts[b + 1] - 1] == slots[-1]
            rows = self.rows[slots]
            assert (rows >= 0).all(), "a row is read that nobody wrote"
            if self.interface.recurrent:
                rows = self.seen_by_state(found, step, b)
            if every:
                for n in range(starts[b], starts[b + 1]):
                    logits[n] = logits_of(rows[: step["positions"][n] + 1].tolist())
            else:
                logits[b] = logits_of(rows.tolist())
        return {"logits": logits}

    def seen_by_state(self, entry: Entry, step: Mapping[str, np.ndarray], b: int) -> np.ndarray:
        """The tokens that the state of a sequence contains, and those of the step; it then contains all that are no
        proposals."""
        first, end = step["starts"][b : b + 2]
        before = self.recurrent[int(step["rows"][b])] if step["lengths"][b] > end - first else []
        assert len(before) == step["positions"][first], "the state contains other tokens than those before"
        total = self.seen(int(step["totals"][b]))
        rows = [*before, *((token, total) for token in step["tokens"][first:end].tolist())]
        stored = step["certain"][b] if entry.proposals else end - first
        self.recurrent[int(step["rows"][b])] = rows[: len(before) + stored]
        return np.array(rows)

    def states(self) -> dict[str, np.ndarray]:
        return {"rows": self.rows.copy()}

    def set_states(self, arrays: Mapping[str, np.ndarray]) -> None:
        raise NotImplementedError


def entry(tokens: int, sequences: int, *, decode: bool, proposals: bool = False) -> Entry:
    name = "decode" if decode else f"prefill_{tokens}"
    name = name if sequences == 1 else f"{name}_{sequences}"
    return Entry(
        name=name, num_tokens=tokens, num_sequences=sequences, decode=decode, contiguous=False, proposals=proposals,
        calls=(), outputs={},
    )  # fmt: skip


def new_batch(*given: Any, **words: Any) -> Batch:
    """A batch with the settings of `new_opened`."""
    return Batch(new_opened(*given, **words))


def new_opened(
    sequences: int = 4, blocks: int = 16, context: int = 256, sizes: Sequence[int] = (32, 128),
    recompute: Sequence[int] = (), varies: int | None = None, kind: str = "paged", *, all_logits: bool = False,
    proposals: int = 0,
) -> Opened:  # fmt: skip
    """A bundle for so many sequences over so many blocks. One with recurrent states checks `proposals`."""
    counts = [1 << power for power in range(sequences.bit_length()) if 1 << power < sequences] + [sequences]
    interface = Interface(
        functions=(),
        entries=(
            *(entry(count * checked_tokens(proposals, True), count, decode=False, proposals=True)
              for count in counts if proposals and kind == "sequence"),
            *(entry(size, count, decode=False) for count in sorted({1, sequences}) for size in sizes),
            *(entry(count, count, decode=True) for count in counts),
        ),
        weights=(),
        states=(StateSpec(name="rows", shape=(1,), dtype="int64", kind=kind),),
        max_blocks=-(-context // BLOCK),
        all_logits=all_logits,
        block_size=BLOCK,
        num_blocks=blocks + 1,
        num_rows=sequences + 1,
        rewindable=0 if kind == "sequence" else None,
    )  # fmt: skip
    manifest = {
        "max_seq_len": context,
        "vocab_size": VOCABULARY,
        "recompute_lengths": list(recompute),
        "states_vary_past": varies,
        "weights": "checkpoint",
        "files": {},
    }
    executor = Exact(interface, lambda total: depends_on(total, recompute, varies))
    return Opened(manifest, executor, interface, Path("none"))


def new_session(
    context: int = 256,
    *,
    sizes: Sequence[int] = (8, 32),
    recompute: Sequence[int] = (),
    varies: int | None = None,
    all_logits: bool = True,
    **words: Any,
) -> Session:
    """A session of such a program, with logits of every token."""
    blocks = -(-context // BLOCK)
    return Session(new_opened(1, blocks, context, sizes, recompute, varies, all_logits=all_logits, **words))


def depends_on(total: int, recompute: Sequence[int], varies: int | None) -> int:
    """As LongRoPE does, or dynamic rope."""
    return sum(total > length for length in recompute) + (max(total - varies, 0) if varies else 0)


def expected(
    request: Request, *, context: int = 256, recompute: Sequence[int] = (), varies: int | None = None, **_: Any
) -> list[int]:
    """The tokens of a request alone, by the definition of each part: no cache, no steps, whatever a program stores."""
    prompt = list(map(int, request.tokens))
    tokens, new = list(prompt), []
    random = np.random.default_rng(request.seed)
    totals = [len(prompt)] * len(prompt)
    while len(new) < request.max_new_tokens:
        if recompute:
            totals = [len(tokens)] * len(tokens)
        logits = logits_of([(t, depends_on(total, recompute, varies)) for t, total in zip(tokens, totals, strict=True)])
        new.append(draw(logits, request, random))
        if new[-1] in set(request.eos) or len(tokens) == context:
            break
        tokens.append(new[-1])
        totals.append(len(tokens))
    return new


def draw(logits: np.ndarray, request: Request, random: np.random.Generator) -> int:
    if request.temperature == 0:
        return int(logits.argmax())
    weights = np.exp(logits.astype(np.float64) / request.temperature)
    weights /= weights.sum()
    order = np.argsort(-weights, kind="stable")[: request.top_k or None]
    shares = np.cumsum(weights[order]) / weights[order].sum()
    nucleus = order[: int((shares < request.top_p).sum()) + 1]
    return int(random.choice(nucleus, p=weights[nucleus] / weights[nucleus].sum()))


def finish(batch: Batch, tokens: dict[int, list[int]] | None = None) -> dict[int, list[int]]:
    """Runs to the end; the new tokens of each request."""
    tokens = {} if tokens is None else tokens
    while batch:
        collect(batch, tokens)
    return tokens


def collect(batch: Batch, tokens: dict[int, list[int]]) -> None:
    for event in batch.step():
        tokens.setdefault(event.id, []).append(event.token)
