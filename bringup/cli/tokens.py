"""Token ids on the command line: their input, and their output."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from bringup.diagnostics import BringupError

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    from bringup.compile.runtime.batch import Batch
    from bringup.compile.runtime.request import Reason
    from bringup.compile.runtime.session import Session
    from bringup.compile.text.tokenizer import Tokenizer


SPEEDS = ("prefill_tokens_per_s", "decode_tokens_per_s", "load_seconds")  # keys in the output of `run --json`


class _Tokens(click.ParamType[list[int]]):
    name = "ids"

    def convert(self, value: str | list[int], param: click.Parameter | None, ctx: click.Context | None) -> list[int]:
        if isinstance(value, list):
            return value
        words = value.replace(",", " ").split()
        wrong = [word for word in words if not word.isdecimal()]
        if wrong or not words:
            self.fail(f"`{wrong[0] if wrong else value}` is not a token id; write 1,2,3", param, ctx)
        return [int(word) for word in words]


TOKENS = _Tokens()


def tokenizer_of(session: Session | Batch, *, required: bool) -> Tokenizer | None:
    """The bundle's tokenizer; None if it has none that can be loaded and none is required."""
    try:
        return session.tokenizer()
    except BringupError:
        if required:
            raise
        return None


def ends_of(session: Session | Batch, tokenizer: Tokenizer | None) -> frozenset[int]:
    """The ids that end an answer: they do not depend on the packages that are installed."""
    from bringup.compile.runtime.opening import eos_of

    return tokenizer.eos if tokenizer else eos_of(session.folder, session.manifest)


def reason_of(tokens: Sequence[int], ends: Container[int], most: int) -> Reason:
    """Why an answer ends, as in `Event.reason`; `most` is the number of tokens that were requested."""
    if tokens and tokens[-1] in ends:
        return "eos"
    return "length" if len(tokens) == most else "context"


class Writer:
    """Writes tokens to stdout as they are generated: as text, or as ids without a tokenizer."""

    def __init__(self, tokenizer: Tokenizer | None, *, quiet: bool) -> None:
        self.stream = tokenizer.stream(skip_special=True) if tokenizer else None
        self.quiet = quiet
        self.tokens: list[int] = []
        self.text: str | None = "" if tokenizer else None

    def push(self, token: int) -> None:
        """Adds the next token."""
        self.tokens.append(token)
        if self.stream:
            self._write(self.stream.push(token))
        elif not self.quiet:
            print(token, end=" ", flush=True)

    def finish(self) -> None:
        """Writes the remaining text, and ends the line."""
        if self.stream:
            self._write(self.stream.finish())
        if not self.quiet:
            print()

    def _write(self, text: str) -> None:
        self.text = (self.text or "") + text
        if not self.quiet:
            sys.stdout.write(text)
            sys.stdout.flush()
