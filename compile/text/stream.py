"""Incremental decoding: text as its tokens arrive."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from bringup.compile.text.byte_fallback import REPLACEMENT

# So many ids are held at most, unless their text changes with further ones: the time of a push is bounded. The text of
# all but the last ones is final if so many characters follow, because a character of UTF-8 has at most four bytes.
MOST_HELD, LAST, FOLLOWING = 32, 16, 4


@dataclass(slots=True)
class Stream:
    """Decodes ids as they arrive: the results of `push` and `finish`, concatenated, are `decode` of all ids.

    A character whose bytes are spread over tokens is held until it is complete, and so are bytes that are part of none,
    up to the next character or some more of these. Each piece is decoded together with
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
        if not new:
            return ""
        if not new.endswith(REPLACEMENT):
            return self._given(new, len(self.ids))
        return self._beginning(new) if self.num_held > MOST_HELD else ""

    def finish(self) -> str:
        """The held text; incomplete characters are U+FFFD."""
        new = self._held()
        self.ids, self.num_given = [], 0
        return new

    @property
    def held(self) -> str:
        """The text that is not final yet; incomplete characters are U+FFFD."""
        return self._held() if self.num_held else ""

    @property
    def num_held(self) -> int:
        """The number of ids whose text is not final yet."""
        return len(self.ids) - self.num_given

    def _beginning(self, new: str) -> str:
        """The final text at the beginning of the held text, `new`; "" if it has none."""
        count = len(self.ids) - LAST
        given = self.decode(self.ids[: self.num_given], skip_special=self.skip_special)
        found = self.decode(self.ids[:count], skip_special=self.skip_special)[len(given) :]
        is_final = new.startswith(found) and len(new) - len(found) >= FOLLOWING
        return self._given(found, count) if found and is_final else ""

    def _given(self, text: str, count: int) -> str:
        """Makes the text of the first `count` ids final."""
        self.ids, self.num_given = self.ids[self.num_given :], count - self.num_given
        return text

    def _held(self) -> str:
        given = self.decode(self.ids[: self.num_given], skip_special=self.skip_special)
        return self.decode(self.ids, skip_special=self.skip_special)[len(given) :]
