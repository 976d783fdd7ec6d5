"""Incremental decoding: text as its tokens arrive."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from bringup.compile.text.byte_fallback import REPLACEMENT


@dataclass(slots=True)
class Stream:
    """Decodes ids as they arrive: the results of `push` and `finish`, concatenated, are `decode` of all ids.

    A character whose bytes are spread over tokens is held until it is complete. Each piece is decoded together with
    the ids of the piece before it, because a decoder may treat the first id of a text differently.
    """

    decode: Callable[..., str]
    skip_special: bool = False
    ids: list[int] = field(default_factory=list[int])  # those of the last piece, then those held
    num_given: int = 0

    def push(self, token: int) -> str:
        """The text that is final after this id; often empty."""
        self.ids.append(token)
        new = self._held()
        if not new or new.endswith(REPLACEMENT):
            return ""
        self.ids, self.num_given = self.ids[self.num_given :], len(self.ids) - self.num_given
        return new

    def finish(self) -> str:
        """The held text; incomplete characters are U+FFFD."""
        new = self._held()
        self.ids, self.num_given = [], 0
        return new

    @property
    def held(self) -> str:
        """The text that is not final yet; incomplete characters are U+FFFD."""
        return self._held() if len(self.ids) > self.num_given else ""

    def _held(self) -> str:
        given = self.decode(self.ids[: self.num_given], skip_special=self.skip_special)
        return self.decode(self.ids, skip_special=self.skip_special)[len(given) :]
