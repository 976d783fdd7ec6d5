"""The growth of queries with their position (`ops.rotary.query_growth`), whose settings are keys of rope."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from bringup.graphs.config.fields import Fields

BETA = "llama_4_scaling_beta"
OF_ROPE = (BETA, "max_position_embeddings")  # keys of rope besides those of its angles; the second is ignored
SCALED = ("yarn", "llama3", "longrope")  # rope types whose original context is by default the config's


def _no_more(rope: Fields) -> None:
    pass


def read_growth(
    fields: Fields, absent: Mapping[str, Any], max_positions: int, check: Callable[[Fields], None] = _no_more
) -> tuple[float, int]:
    """The factor and the period: `llama_4_scaling_beta`, and the context of rope before it was extended.

    `absent` are the settings of rope of a config without any, `max_positions` the default of
    `max_position_embeddings`. `check` reads further settings of rope, and reports what is wrong with them.
    """
    name = "rope_scaling" if fields.raw.get("rope_scaling") else "rope_parameters"  # as `RopeConfig.from_hf`
    if fields.raw.get(name) is None:
        settings = absent
    else:
        settings = fields.group(name, stops="")
        if not fields.valid(name):
            return 0.0, 1  # a stand-in: an error was reported
    rope = Fields(settings, f"{fields.family} rope", at=f"{fields.path(name)}.")
    check(rope)
    growth = rope.get(BETA, float), _period(fields, rope, max_positions)
    known = {finding.parameter for finding in fields.findings}  # `RopeConfig` also reads the original context
    fields.findings += (finding for finding in rope.findings if finding.parameter not in known)
    return growth


def _period(fields: Fields, rope: Fields, max_positions: int) -> int:
    key = "original_max_position_embeddings"
    if rope.raw.get("rope_type", rope.raw.get("type")) not in SCALED:
        return rope.size(key)
    if fields.raw.get(key) is not None:
        return fields.size(key)
    return rope.size(key, fields.size("max_position_embeddings", max_positions))
