"""Findings on keys of a config.json that the family does not read, and on allowances for absent keys."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Set
from typing import Any

from bringup.diagnostics import Diagnostic, Severity, did_you_mean
from bringup.graphs.config.neutral import NEUTRAL
from bringup.nearest import nearest
from bringup.shown import short, shown

MOST_UNKNOWN = 20  # keys that are reported one by one


def unread_keys(
    raw: Mapping[str, Any], read: Set[str], allowed: Mapping[str, str], family: str
) -> Iterator[Diagnostic]:
    """BU120 for each key that is neither read, neutral nor allowed; BU025 for each allowed key that is absent.

    A key with an empty value (null, "", [], {}) is a note. Many unknown keys are one finding.
    """
    unknown = [key for key in raw if key not in read and key not in NEUTRAL and key not in allowed]
    if len(unknown) > MOST_UNKNOWN:
        yield _too_many(unknown, family)
    else:
        yield from (unknown_key(key, raw[key], read, family) for key in unknown)
    for key in allowed.keys() - raw.keys():
        yield Diagnostic(
            code="BU025",
            message=f"--allow-config names `{key}`, which the config does not have",
            help=did_you_mean(key, raw.keys() - read - NEUTRAL) or did_you_mean(key, raw) or "leave it out",
            parameter=key,
            severity=Severity.WARNING,
        )


def _too_many(unknown: list[str], family: str) -> Diagnostic:
    some = ", ".join(f"`{short(key)}`" for key in unknown[:5])
    message = f"{len(unknown):,} config keys are not read by the {family} graph: {some}, …"
    return Diagnostic(code="BU120", message=message, parameter=unknown[0], help="is it the config of another model?")


def misspelt(raw: Mapping[str, Any], read: Set[str], allowed: Mapping[str, str]) -> dict[str, str]:
    """The keys that are not read, each with the one read but absent key that it resembles."""
    absent = read - raw.keys()
    unknown = [
        key for key in raw if key not in read and key not in NEUTRAL and key not in allowed and not _empty(raw[key])
    ]
    found = {key: nearest(key, absent) for key in (unknown if len(unknown) <= MOST_UNKNOWN else ())}
    intended = {key: names[0] for key, names in found.items() if len(names) == 1}
    return {key: name for key, name in intended.items() if list(intended.values()).count(name) == 1}


def _empty(value: Any) -> bool:
    """Whether a value is empty; false and 0 are not, because they may disable something."""
    return value is None or value in ([], {}, "")


def unknown_key(key: str, value: Any, read: Collection[str], family: str) -> Diagnostic:
    """BU120 for a key that is not read; a note if its value is empty."""
    allow = f"read it in `from_fields`, or if it does not affect the result: --allow-config {short(key)}=REASON"
    return Diagnostic(
        code="BU120",
        message=f"config key `{short(key)}` = {shown(value)} is not read by the {family} graph",
        help=f"{did_you_mean(key, read)} {allow}".lstrip(),
        parameter=key,
        config_key=key,
        severity=Severity.NOTE if _empty(value) else Severity.ERROR,
    )
