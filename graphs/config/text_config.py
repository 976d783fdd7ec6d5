"""A config.json that has the keys of a text model under `text_config`, next to those of other inputs."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Literal, TypeVar

from bringup.graphs.config.fields import Fields
from bringup.graphs.config.hf_config import HFConfig

C = TypeVar("C", bound=HFConfig)
TIED = "tie_word_embeddings"


def of_text(
    fields: Fields,
    others: Collection[str],
    read: Callable[[Fields], C],
    *,
    ties: Literal["either", "inner", "outer"] = "either",
    tied: bool = False,
) -> C:
    """The config that `read` returns for the keys of the text model: those under `text_config`, or all.

    `others` are keys on images and the like, which do not affect a logit of text. The head is tied by
    `tie_word_embeddings` inside of `text_config` or outside; `ties` names the one that transformers' models read.
    `tied` is the default of the outer key.
    """
    if "text_config" not in fields.raw:
        return read(fields)
    fields.read |= {*others}
    keys, outer = fields.group("text_config"), fields.get(TIED, bool, tied)
    if ties == "outer" or (ties == "either" and outer):
        keys = keys | {TIED: outer}
    allowed = {key: fields.allowed.pop(key) for key in keys.keys() & fields.allowed}
    inner = Fields(keys, f"{fields.family}'s text model", allowed, at="text_config.")
    config = read(inner)
    fields.findings += inner.done()
    return config
