"""An answer as its tokens arrive: text up to the first stop string, scores of tokens, and the reason for its end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, takewhile
from typing import Literal, NamedTuple

from bringup.compile.runtime.scores import Score
from bringup.compile.serve.worker import Update
from bringup.compile.text.byte_fallback import REPLACEMENT
from bringup.compile.text.stream import Stream

Ending = Literal["stop", "length"]


class Scored(NamedTuple):
    """A token; `offset` is the number of characters before it. `score` is None for the first token of a prompt."""

    offset: int
    token: int
    score: Score | None


class Piece(NamedTuple):
    """Text that is final, and its tokens if they have scores."""

    text: str
    tokens: Sequence[Scored] = ()


@dataclass(frozen=True, slots=True)
class Echo:
    """A prompt that precedes its answer: its text, its tokens, and the number of characters before each token."""

    text: str
    tokens: Sequence[int]
    offsets: Sequence[int]


@dataclass(slots=True)
class Placed:
    """Decodes as `Stream`, and places each token in the text: the number of characters before that of its first byte.

    The bytes of a character may be those of several tokens, so a token is placed when its text is final.
    """

    stream: Stream
    _held: str = ""
    # Of each token: the held text before it, and whether it continues the last character of that text.
    _waiting: list[tuple[str, bool]] = field(default_factory=list[tuple[str, bool]])

    def push(self, token: int) -> tuple[str, list[int]]:
        """The text that is final after this token, and the places in it of the tokens since the previous text."""
        before, text = self._held, self.stream.push(token)
        self._held = self.stream.held
        self._waiting.append((before, bool(before) and self._continues(before, token, text + self._held)))
        return (text, self._places(text, len(self._waiting) - self.stream.num_held)) if text else ("", [])

    def finish(self) -> tuple[str, list[int]]:
        """The held text, and the places of the remaining tokens."""
        text, self._held = self.stream.finish(), ""
        return text, self._places(text, len(self._waiting))

    def _continues(self, before: str, token: int, after: str) -> bool:
        """Whether a token's first byte belongs to the last character of `before`; `after` is the text of both.

        Then the two have fewer characters together than apart: U+FFFD replaces bytes of both.
        """
        alone = self.stream.decode([token], skip_special=self.stream.skip_special)
        return len(after) < len(before) + len(alone)

    def _places(self, text: str, count: int) -> list[int]:
        """The places of the first `count` tokens; the text before the others is shortened by this one."""
        found = [_place(before, continues, text) for before, continues in self._waiting[:count]]
        self._waiting = [(before[len(text) :], continues) for before, continues in self._waiting[count:]]
        # A special token without text may be between the bytes of a character: it is placed before that character.
        return [*accumulate(reversed(found), min)][::-1]


def _place(before: str, continues: bool, text: str) -> int:
    """The place of a token in a text, of which `before` was held before it: the characters that both have in common
    are those before the token, except for the last one if the token continues it.
    """
    common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(before, text, strict=False)))
    return min(common, len(before) - 1) if continues else common


def echo_of(text: str, tokens: Sequence[int], stream: Stream) -> Echo:
    """The echo of a prompt. `text` is empty for a prompt of token ids, whose text is then decoded."""
    placed, written, offsets = Placed(stream), "", list[int]()
    for new, places in (*map(placed.push, tokens), placed.finish()):
        offsets += (len(written) + place for place in places)
        written += new
    text = text or written
    return Echo(text, tokens, [min(offset, len(text)) for offset in offsets])


@dataclass(slots=True)
class Answer:
    """One answer. `tokens` is the number of tokens computed for it, including the one that ends it. `ending` is None
    until it ends.

    With `echo` the prompt comes first, and stop strings in it are ignored; `is_empty`: nothing follows the prompt.
    """

    stream: Stream
    stops: Sequence[str]
    echo: Echo | None = None
    is_empty: bool = False
    tokens: int = 0
    ending: Ending | None = None
    _given: int = 0  # characters returned so far
    _held: str = ""  # text that may be the beginning of a stop string
    _scored: list[Scored] = field(default_factory=list[Scored])  # tokens of the held text
    _unplaced: list[Score] = field(default_factory=list[Score])  # of the tokens whose text is not final
    _placed: Placed = field(init=False)

    def __post_init__(self) -> None:
        self._placed = Placed(self.stream)

    def push(self, update: Update) -> Piece:
        """The text that is final after this update."""
        before = self._echoed(update)
        if self.is_empty:
            self.ending = "length"
            return before
        self._take(update)
        found = [at for stop in self.stops if (at := self._held.find(stop)) >= 0]
        if found:
            self.ending = "stop"
            after = self._certain(min(found))
        elif update.reason:
            self.ending = "stop" if update.reason == "eos" else "length"
            after = Piece(self._held, self._scored)
        else:
            after = self._certain(len(self._held) - max((_overlap(self._held, stop) for stop in self.stops), default=0))
        return Piece(before.text + after.text, [*before.tokens, *after.tokens])

    def _echoed(self, update: Update) -> Piece:
        """The prompt at the first call, then nothing."""
        if (echo := self.echo) is None:
            return Piece("")
        self.echo, self._given = None, len(echo.text)
        scores = zip(echo.offsets, echo.tokens, update.prompt, strict=True) if update.prompt else ()
        return Piece(echo.text, [Scored(*each) for each in scores])

    def _take(self, update: Update) -> None:
        if update.token is not None:
            self.tokens += 1
            if update.reason != "eos" and update.score:
                self._unplaced.append(update.score)
                self._place(*self._placed.push(update.token))
            elif update.reason != "eos":
                self._held += self.stream.push(update.token)
        if update.reason or self._stops_before_a_character():
            self._place(*self._placed.finish())

    def _stops_before_a_character(self) -> bool:
        """Whether a stop string precedes a character that is incomplete: no further token is needed to end."""
        if not self.stops or not (text := self.stream.held):
            return False
        text = self._held + text.rstrip(REPLACEMENT)
        return any(stop in text for stop in self.stops)

    def _place(self, text: str, places: Sequence[int]) -> None:
        start = self._given + len(self._held)
        scores, self._unplaced = self._unplaced[: len(places)], self._unplaced[len(places) :]
        self._scored += (Scored(start + at, score.token, score) for at, score in zip(places, scores, strict=True))
        self._held += text

    def _certain(self, count: int) -> Piece:
        """The first `count` characters of the held text, and the tokens that begin in them."""
        text, self._held = self._held[:count], self._held[count:]
        self._given += count
        tokens = [each for each in self._scored if each.offset < self._given]
        del self._scored[: len(tokens)]
        return Piece(text, tokens)


def _overlap(text: str, stop: str) -> int:
    """The number of characters at the end of a text that are a prefix of a stop string."""
    most = min(len(text), len(stop) - 1)
    return next((count for count in range(most, 0, -1) if text.endswith(stop[:count])), 0)
