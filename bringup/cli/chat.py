"""A conversation on the command line: messages from --prompt or stdin, as tokens of the model's chat template."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bringup.diagnostics import fail

if TYPE_CHECKING:
    from bringup.compile.text.chat import Chat, Message
    from bringup.compile.text.tokenizer import Tokenizer


@dataclass(slots=True)
class Conversation:
    """The messages so far. The template formats all of them for each answer, with special tokens."""

    tokenizer: Tokenizer
    chat: Chat
    messages: list[Message]

    def user_message(self, text: str) -> list[int]:
        """The tokens up to the answer to `text`. Raises BU611, BU612, BU613, BU922."""
        self.messages.append({"role": "user", "content": text})
        return self.tokenizer.encode(self.chat.render(self.messages), whole=False)

    def heard(self, answer: str) -> None:
        """Adds the model's answer."""
        self.messages.append({"role": "assistant", "content": answer})


def opened(tokenizer: Tokenizer, system: str | None) -> Conversation:
    """A conversation without messages. Raises BU610 if the bundle has no chat template."""
    if tokenizer.chat is None:
        help = "its checkpoint has none; --prompt without --chat continues a text"
        raise fail("BU610", "the bundle has no chat template", help=help)
    first: list[Message] = [] if system is None else [{"role": "system", "content": system}]
    return Conversation(tokenizer, tokenizer.chat, first)


def user_prompts(prompt: str | None) -> Iterator[str]:
    """The prompt alone or, without one, each line of stdin that is not empty."""
    if prompt is not None:
        yield prompt
        return
    while True:
        if sys.stdin.isatty():
            sys.stderr.write("> ")
            sys.stderr.flush()
        line = sys.stdin.readline()
        if not line:
            return
        if line.strip():
            yield line.rstrip("\r\n")
