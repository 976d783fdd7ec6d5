"""A second name of a config key, which transformers reads by `attribute_map` of its configuration class."""

from __future__ import annotations

from bringup.graphs.config.fields import Fields


def read_alias(fields: Fields, alias: str, key: str) -> None:
    """Lets `fields` read the value of `alias` as that of `key`; messages name `alias`.

    If a config has both, transformers uses the value of `alias`; another value of `key` is a warning (BU151).
    """
    value = fields.raw.get(alias)
    if value is None:
        return
    if fields.raw.get(key, value) != value:
        fields.overridden(key, fields.raw[key], fields.path(alias), value)
    fields.read.add(alias)
    fields.elsewhere[key] = fields.path(alias)
    fields.raw = {**fields.raw, key: value}
