"""Two checkpoints as one: a second source in addition to the first, with a prefix on its names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeVar

from bringup.adapters.checkpoints.checkpoint import Checkpoint
from bringup.diagnostics import fail
from bringup.grouping import some
from bringup.spec import TensorInfo

T = TypeVar("T")


def split_prefix(word: str) -> tuple[str, str]:
    """Source and prefix of `SRC:PREFIX`; the prefix follows the last colon. Raises BU043.

    A prefix has neither `/` nor `\\`, so that the colon of `hf://…` does not count.
    """
    source, colon, prefix = word.rpartition(":")
    if not colon or not source or "/" in prefix or "\\" in prefix:
        help = "write SRC:PREFIX, such as ./draft:draft. ; with `SRC:` names are unchanged"
        raise fail("BU043", f"`{word}` names no prefix for the second checkpoint", help=help)
    return source, prefix


def with_second(first: Checkpoint, second: Checkpoint, prefix: str) -> Checkpoint:
    """The first checkpoint and the second's tensors with `prefix`. Config and tokenizer are the first's.

    `also` in its provenance has that of every further source, with its prefix, in order.

    Raises BU043 for a name that both have.
    """
    ours = {f"{prefix}{name}": info for name, info in second.headers.items()}
    if twice := [name for name in ours if name in first.headers]:
        message = f"`{first.source}` and `{second.source}` both have {some(twice)}"
        raise fail("BU043", message, help=f"give the second a prefix: --also {second.source}:draft.")
    also = {**second.provenance, "source": second.source, "prefix": prefix}
    added = {name: info._replace(name=name) for name, info in ours.items()}
    return replace(
        first,
        headers={**first.headers, **added},
        read=_either(first.read, second.read, ours),
        load=_either(first.load or first.read, second.load or second.read, ours),
        in_place=_either(first.in_place, second.in_place, ours),
        findings=[*first.findings, *second.findings],
        files={**first.files, **second.files},
        provenance={**first.provenance, "also": [*first.provenance.get("also", ()), also]},
    )


def _either(
    first: Callable[[TensorInfo], T], second: Callable[[TensorInfo], T], theirs: Mapping[str, TensorInfo]
) -> Callable[[TensorInfo], T]:
    """Calls the function of a tensor's source, with the tensor's name there."""

    def read(info: TensorInfo) -> T:
        other = theirs.get(info.name)
        return first(info) if other is None else second(other)

    return read
