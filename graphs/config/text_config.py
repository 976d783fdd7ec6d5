"""The text model's keys in the config of a model of text and images."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TypeVar

from bringup.graphs.config.fields import Fields
from bringup.graphs.config.hf_config import HFConfig

C = TypeVar("C", bound=HFConfig)


def of_text(fields: Fields, images: Collection[str], read: Callable[[Fields], C], *, outer_ties: bool = True) -> C:
    """The config that `read` returns for the keys of the text model: those under `text_config`, or all.

    `images` are keys on images and videos. The head is tied by `tie_word_embeddings` inside of
    `text_config` or, if `outer_ties`, outside: most of transformers' models of text and images read the outer one, its
    models of text the inner one.
    """
    if "text_config" not in fields.raw:
        return read(fields)
    fields.read |= set(images)
    keys = fields.group("text_config")
    if fields.get("tie_word_embeddings", bool, False) and outer_ties:
        keys = keys | {"tie_word_embeddings": True}
    allowed = {key: fields.allowed.pop(key) for key in keys.keys() & fields.allowed}
    inner = Fields(keys, f"{fields.family}'s text model", allowed, at="text_config.")
    config = read(inner)
    fields.findings += inner.done()
    return config
