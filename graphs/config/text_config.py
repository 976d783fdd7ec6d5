"""A config.json that has the keys of a text model under `text_config`, next to those of other inputs."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TypeVar

from bringup.graphs.config.fields import Fields

C = TypeVar("C")
TIED = "tie_word_embeddings"


def of_text(fields: Fields, read: Callable[[Fields], C], others: Collection[str], *, tied: bool | None = None) -> C:
    """The config that `read` returns for the keys of the text model: those under `text_config`, or all.

    `others` are keys on images and the like, which do not affect a logit of text. The head is tied by
    `tie_word_embeddings` in either place, or, with `tied`, by the outer key alone, of which that is the default.
    """
    if "text_config" not in fields.raw:
        return read(fields)
    fields.read |= {*others}
    keys, outer = fields.group("text_config"), fields.get(TIED, bool, bool(tied))
    if outer or tied is not None:
        keys = keys | {TIED: outer}
    allowed = {key: fields.allowed.pop(key) for key in keys.keys() & fields.allowed}
    inner = Fields(keys, f"{fields.family}'s text model", allowed, at="text_config.")
    config = read(inner)
    fields.findings += inner.done()
    return config
