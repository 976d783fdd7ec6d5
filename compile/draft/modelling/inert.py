"""The keys of config.json that have no effect: neither transformers' code nor its configuration class reads them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# Files of transformers that read keys of every family's config, below the folder of the package.
SHARED = (
    "cache_utils.py", "integrations/moe.py", "masking_utils.py", "modeling_layers.py", "modeling_rope_utils.py",
    "modeling_utils.py",
)  # fmt: skip
READ = re.compile(r"(?<!\bself)\.(\w+)|[\"'](\w+)[\"']")  # as an attribute of a config, or by name


def rejections() -> tuple[type[BaseException], ...]:
    """What a configuration class raises for values that it rejects or cannot compute with: any built-in error of a
    value, as each class has checks of its own."""
    from huggingface_hub.errors import StrictDataclassError  # transformers requires huggingface_hub

    errors = ArithmeticError, AttributeError, LookupError, NotImplementedError, TypeError, ValueError
    return StrictDataclassError, *errors


def inert_keys(kind: Any, raw: Mapping[str, Any], modelling: Path) -> frozenset[str]:
    """The keys whose name occurs neither in the modelling file nor in those that all families share, and whose value
    `kind`, the configuration class, can change without a change of any other key."""
    words = {word for word in re.findall(r"\w+", modelling.read_text("utf-8"))}
    return frozenset(key for key in alone_in(kind, raw, modelling) if key not in words)


def alone_in(kind: Any, raw: Mapping[str, Any], modelling: Path) -> frozenset[str]:
    """The keys that the files of all families do not read, and that change no other key of the config."""
    package = modelling.parents[2]
    files = [file for name in SHARED if (file := package / name).is_file()]
    words = {word for file in files for both in READ.findall(file.read_text("utf-8")) for word in both}
    try:
        plain = kind(**raw).to_dict()
    except rejections():
        return frozenset()
    return frozenset(key for key in raw if key not in words and _alone(kind, raw, key, plain))


def _alone(kind: Any, raw: Mapping[str, Any], key: str, plain: Mapping[str, Any]) -> bool:
    """Whether another value of a key changes this key alone."""
    value = raw[key]
    if isinstance(value, bool):
        other: Any = not value
    elif isinstance(value, int | float):
        other = value + 1
    elif isinstance(value, str):
        other = f"{value}_"
    else:
        return False
    try:
        changed = kind(**{**raw, key: other}).to_dict()
    except rejections():
        return False
    return {name for name in {*plain, *changed} if plain.get(name) != changed.get(name)} <= {key}
