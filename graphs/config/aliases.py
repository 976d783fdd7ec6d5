"""Second names of config keys, which transformers prefers to the first: by `attribute_map`, or as older names."""

from __future__ import annotations

from collections.abc import Mapping

from bringup.graphs.config.fields import Fields


def read_alias(fields: Fields, alias: str, key: str, *, null: bool = False) -> None:
    """Lets `fields` read the value of `alias` as that of `key`; messages name `alias`.

    If a config has both, transformers uses the value of `alias`, even null; another value of `key` is a warning
    (BU151). `null`: transformers computes with null; otherwise it is BU121.
    """
    if alias not in fields.raw:
        return
    value, other = fields.raw[alias], fields.raw.get(key)
    is_used = null or value is not None
    if is_used and other is not None and other != value:
        fields.overridden(key, other, fields.path(alias), value)
    fields.read.add(alias)
    fields.elsewhere[key] = fields.path(alias)
    if not is_used:
        help = "remove the key: transformers uses its null even if the config has the value under another name"
        stops = "size" if other is None else ""
        fields.error("BU121", f"config key `{key}` is null; it must have a value, or be absent", key, help, stops=stops)
        return
    fields.raw = {**fields.raw, key: value}


def older_keys(fields: Fields, older: Mapping[str, str]) -> dict[str, str]:
    """Those of the keys that the config has under their older names, with these names."""
    found = {key: name for key, name in older.items() if name in fields.raw}
    for key, name in found.items():
        fields.read.add(key)
        if key in fields.raw and fields.raw[key] != fields.raw[name]:
            fields.overridden(key, fields.raw[key], fields.path(name), fields.raw[name])
    return found
