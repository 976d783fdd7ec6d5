"""AutoRound's checkpoints, in the layout of GPTQ or of AWQ, which `packing_format` states.

intel/auto-round, auto_round/export/export_to_autoround/export.py; `extra_config` has the settings of single modules.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import cast

from bringup.adapters.schemes.awq import Awq
from bringup.adapters.schemes.gptq import Gptq
from bringup.adapters.schemes.gptq_keys import (
    MOST_OVERRIDES,
    Groups,
    Override,
    Selection,
    override,
    read_auto_round,
    read_groups,
)
from bringup.adapters.schemes.scheme import Scheme, Stored
from bringup.graphs.config.expression import Expression
from bringup.graphs.config.fields import Fields
from bringup.graphs.config.unquantized import UnquantizedModules
from bringup.shown import shown

AS_FLOATS = 16  # modules with at least this many bits are not quantised
GPTQ = ("auto_round:auto_gptq", "auto_gptq")
AWQ = ("auto_round:auto_awq", "auto_awq")
WITHOUT_OFFSET = ("auto_round", "auto_round:gptqmodel")  # GPTQ's layout with zero points as they are


def read(words: Fields) -> Stored:
    read_auto_round(words)
    packing = words.choice("packing_format", (*GPTQ, *WITHOUT_OFFSET, *AWQ), GPTQ[0])
    usual = read_groups(words)
    selection = _selection(words, usual, other_groups=packing not in AWQ)
    words.read |= {"sym", "block_name_to_quantize", "extra_config", "lm_head"}
    unquantized = UnquantizedModules.from_fields(words)
    if packing not in AWQ:
        return Gptq(int(packing in GPTQ), selection, unquantized)
    words.only("bits", 4)
    names = frozenset(name for name, groups in selection.named.items() if groups is None)
    return Awq(usual.size, True, replace(unquantized, names=unquantized.names | names))


def _selection(words: Fields, usual: Groups, *, other_groups: bool) -> Selection:
    """The modules with other settings, by name or expression: those with 16 bits or more are not quantised."""
    named: dict[str, Groups | None] = {}
    overrides: list[Override] = []
    given = cast("Mapping[str, object]", words.group("extra_config"))
    for name, settings in given.items():
        bits = cast("Mapping[str, object]", settings).get("bits") if isinstance(settings, Mapping) else None
        as_it_is = isinstance(bits, int) and bits >= AS_FLOATS
        groups = None if as_it_is else override(words, "extra_config", usual, cast("object", settings))
        if not other_groups and groups not in (None, usual):
            message = f"`extra_config` has other settings for {shown(name)}, which AWQ's layout does not have"
            words.error("BU122", message, "extra_config")
        if re.fullmatch(r"[\w.-]+", name):
            named[name] = groups
            continue
        try:
            overrides.append(Override(Expression(name), groups))
        except ValueError as error:
            words.error("BU122", f"`extra_config` has {shown(name)}, which cannot be parsed: {error}", "extra_config")
    if len(overrides) > MOST_OVERRIDES:
        words.error("BU122", f"`extra_config` has more than {MOST_OVERRIDES} expressions", "extra_config")
    return Selection(usual, True, named=named, overrides=tuple(overrides[:MOST_OVERRIDES]))


scheme = Scheme(name="AutoRound", methods=("auto-round",), read=read)
