"""Text as its tokens arrive."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from bringup.compile.text.byte_fallback import REPLACEMENT


@dataclass(slots=True)
class Stream:
    """Text as its ids arrive: the pieces of `push`, and then that of `finish`, make up `decode` of all ids.

    A character whose bytes are spread over tokens is held back until it is whole. Each piece is what ids add
    to the text of those given out last, since a decoder may treat the first of a text apart.
    """

    decode: Callable[..., str]
    skip_special: bool = False
    ids: list[int] = field(default_factory=list[int])  # those given out last, then those held back
    num_given: int = 0

    def push(self, token: int) -> str:
        """The text that is certain once this id is known; often empty."""
        self.ids.append(token)
        new = self._held()
        if not new or new.endswith(REPLACEMENT):
            return ""
        self.ids, self.num_given = self.ids[self.num_given :], len(self.ids) - self.num_given
        return new

    def finish(self) -> str:
        """What was held back; bytes that never became a character come as U+FFFD."""
        new = self._held()
        self.ids, self.num_given = [], 0
        return new

    def _held(self) -> str:
        given = self.decode(self.ids[: self.num_given], skip_special=self.skip_special)
        return self.decode(self.ids, skip_special=self.skip_special)[len(given) :]
