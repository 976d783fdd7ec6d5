"""Whether a config.json belongs to the family that reads it: by its `architectures` and its `model_type`.

All keys, names and shapes of another family may fit and the result still be wrong: Gemma's norms add 1 to their
weights, Helium's RoPE rotates adjacent channels.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

from bringup.diagnostics import BringupError, fail
from bringup.graphs.config.hf_config import architectures
from bringup.graphs.family import Family
from bringup.graphs.registry import FAMILIES
from bringup.shown import short


def check_identity(
    family: Family, raw: Mapping[str, Any], allow: Mapping[str, str] | None = None, *, named: bool = False
) -> None:
    """Rejects a config.json of another family's model. Raises BU152, and BU121 for invalid `architectures`.

    `named`: the user chose the family, so `architectures` are compared as well; one of the family's own is enough.
    `allow` lists keys that are not checked. A family that lists no architectures, or whose config class lists no
    `model_types`, accepts every config. So does a family that reads its configs with the config class of a built-in
    one, if the config names an architecture that only this family has: `model_types` are those of the built-in one.
    """
    allow = allow or {}
    names = architectures(raw)
    compared = named and names and family.architectures and "architectures" not in allow
    if compared and not set(names) & {*family.architectures, *getattr(family.load("config"), "drafts_for", ())}:
        raise _mismatch(family, "architectures", names[0], family.architectures, _server(names))
    kind = raw.get("model_type")
    known = () if _is_its_own(family, names) else _model_types(family)
    if isinstance(kind, str) and known and kind not in known and "model_type" not in allow:
        raise _mismatch(family, "model_type", kind, known, _server_of_type(kind, family), names)


def _mismatch(
    family: Family, key: str, value: str, known: Iterable[str], server: Family | None, names: Iterable[str] = ()
) -> BringupError:
    listed = ", ".join(f"`{name}`" for name in known)
    next_to = f" with `architectures` `{short(next(iter(names)))}`" if names else ""
    message = f"config sets `{key}` = `{short(value)}`{next_to}; the {family.name} graph supports {listed}"
    other = f"name `{server.name}` or leave MODEL out" if server else "`bringup models` lists the models"
    help = f"{other}; if the checkpoint truly is {family.name} under another name: --allow-config {key}=REASON"
    return fail("BU152", message, help=help, config_key=key)


def _model_types(family: Family) -> tuple[str, ...]:
    """The `model_types` of the family's own config class; a subclass in a user's file does not inherit them."""
    own = cast("dict[str, Any]", vars(family.load("config")))
    return cast("tuple[str, ...]", own.get("model_types", ()))


def _is_its_own(family: Family, names: Iterable[str]) -> bool:
    """Whether a family uses a built-in config class, and only it supports one of the config's architectures."""
    kind = family.load("config")
    borrowed = any(ours.config == f"{kind.__module__}:{kind.__qualname__}" for ours in FAMILIES)
    own = set(family.architectures) & set(names)
    return borrowed and family not in FAMILIES and any(_server((name,)) is None for name in own)


def _server(names: Iterable[str]) -> Family | None:
    return next((family for family in FAMILIES if set(family.architectures) & set(names)), None)


def _server_of_type(kind: str, but: Family) -> Family | None:
    """The family whose name is this `model_type`, as for most families."""
    return next((family for family in FAMILIES if family.name == kind and family is not but), None)
