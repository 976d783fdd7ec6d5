"""Measurements as Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

QUIET = 0.06  # of the machine; a turn beside more than that is kept only when there is no better one


@dataclass(frozen=True, slots=True)
class Turn:
    """One contender's part of a round. Tokens/s; `bandwidth` GB/s read just before and after; `others` a share."""

    prefill: float
    decode: float
    bandwidth: float
    others: float


@dataclass(slots=True)
class Result:
    """All of one contender at one dtype. `compiled`, cold, and `repeated` are None where nothing is compiled."""

    name: str
    dtype: str
    bytes_per_token: int
    import_seconds: float = 0.0
    load_seconds: float = 0.0
    compiled: float | None = None
    repeated: float | None = None
    tokens: list[int] = field(default_factory=list[int])  # the first after the long prompt, then those of `decode`
    turns: list[Turn] = field(default_factory=list[Turn])

    @property
    def disturbed(self) -> bool:
        return all(turn.others > QUIET for turn in self.turns)

    def quiet_turns(self) -> dict[int, Turn]:
        """Turns by round: the quiet ones, or all where none was."""
        rounds = dict(enumerate(self.turns))
        return {i: turn for i, turn in rounds.items() if turn.others <= QUIET} or rounds


def agreed(ours: Sequence[int], theirs: Sequence[int]) -> int:
    """The number of tokens before the first difference."""
    pairs = enumerate(zip(ours, theirs, strict=True))
    return next((at for at, (one, other) in pairs if one != other), len(ours))


def spread(values: Iterable[float], form: str) -> str:
    """Median [least - most]."""
    found = list(values)
    if not found:
        return "-"
    return f"{statistics.median(found):{form}} [{min(found):{form}} - {max(found):{form}}]"


def speeds(results: Sequence[Result]) -> str:
    """The table of the rounds."""
    rows = [
        ("contender", "dtype", "prefill 512, tok/s", "bringup is", "decode, tok/s", "bringup is", "weights read, GB/s",
         "share of read bandwidth", "turns kept"),
    ]  # fmt: skip
    for result in results:
        ours = next((r for r in results if r.name == "bringup" and r.dtype == result.dtype), None)
        turns = result.quiet_turns()
        rates = {i: turn.decode * result.bytes_per_token / 1e9 for i, turn in turns.items()}
        row = (
            result.name,
            result.dtype,
            spread((turn.prefill for turn in turns.values()), ".0f"),
            _ratio(ours, result, "prefill"),
            spread((turn.decode for turn in turns.values()), ".1f"),
            _ratio(ours, result, "decode"),
            f"{statistics.median(rates.values()):.1f}",
            spread((rates[i] / turn.bandwidth for i, turn in turns.items()), ".0%"),
            f"{len(turns)} of {len(result.turns)}" + (" (†)" if result.disturbed else ""),
        )
        rows.append(row)
    return table(rows)


def _ratio(ours: Result | None, theirs: Result, what: str) -> str:
    """The median of the ratios in rounds that both kept."""
    if ours is None or ours is theirs:
        return "-"
    our_turns, other = ours.quiet_turns(), theirs.quiet_turns()
    ratios = [getattr(our_turns[i], what) / getattr(other[i], what) for i in our_turns if i in other]
    mark = " (†)" if ours.disturbed or theirs.disturbed else ""
    return f"{statistics.median(ratios):.2f}x{mark}" if ratios else "-"


def starts(results: Sequence[Result]) -> str:
    """The table of what comes before the first token."""
    rows: list[Sequence[str]] = [
        ("contender", "dtype", "compile, cold", "compile, repeated", "imports", "load, to the first token")
    ]
    for r in results:
        compiled = [f"{seconds:.1f} s" if seconds is not None else "-" for seconds in (r.compiled, r.repeated)]
        rows.append((r.name, r.dtype, *compiled, f"{r.import_seconds:.2f} s", f"{r.load_seconds:.2f} s"))
    return table(rows)


def agreement(results: Sequence[Result]) -> list[str]:
    """A line for each contender and dtype: are its greedy tokens those of transformers (else of the first)?"""
    lines: list[str] = []
    for dtype in dict.fromkeys(r.dtype for r in results):
        same = [r for r in results if r.dtype == dtype]
        reference = next((r for r in same if r.name == "transformers"), same[0])
        for result in same:
            if result is reference:
                continue
            pairs = list(zip(result.tokens[1:], reference.tokens[1:], strict=True))
            first = next((i for i, (a, b) in enumerate(pairs) if a != b), len(pairs))
            said = "all equal" if first == len(pairs) else f"the first {first} equal"
            after = "equal" if result.tokens[0] == reference.tokens[0] else "not equal"
            wrong = " **DIFFERS**" if dtype == "float32" and (first < len(pairs) or after != "equal") else ""
            lines.append(
                f"{dtype}, {result.name} against {reference.name}: of {len(pairs)} decoded tokens {said}; "
                f"the token after prefill {after}{wrong}"
            )
    return lines


def table(rows: Sequence[Sequence[str]]) -> str:
    """Rows as Markdown; the first is the head."""
    head, *body = ("| " + " | ".join(row) + " |" for row in rows)
    return "\n".join([head, "|" + "---|" * len(rows[0]), *body])
