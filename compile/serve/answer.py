"""One answer as its tokens arrive: text up to the first stop string, and why it ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from bringup.compile.serve.worker import Update
from bringup.compile.text.stream import Stream

Ending = Literal["stop", "length"]


@dataclass(slots=True)
class Answer:
    """`tokens` counts those that were computed for it, the one that ends it too. `ending` is None until it ends."""

    stream: Stream
    stops: Sequence[str]
    tokens: int = 0
    ending: Ending | None = None
    _held: str = ""  # text that may be the beginning of a stop string

    def push(self, update: Update) -> str:
        """The text that is certain once this update is known."""
        if update.token is not None:
            self.tokens += 1
            if update.reason != "eos":
                self._held += self.stream.push(update.token)
        if update.reason:
            self._held += self.stream.finish()
        found = [at for stop in self.stops if (at := self._held.find(stop)) >= 0]
        if found:
            self.ending = "stop"
            return self._held[: min(found)]
        if update.reason:
            self.ending = "stop" if update.reason == "eos" else "length"
            return self._held
        certain = len(self._held) - max((_overlap(self._held, stop) for stop in self.stops), default=0)
        text, self._held = self._held[:certain], self._held[certain:]
        return text


def _overlap(text: str, stop: str) -> int:
    """How much of the end of a text is the beginning of a stop string."""
    most = min(len(text), len(stop) - 1)
    return next((count for count in range(most, 0, -1) if text.endswith(stop[:count])), 0)
