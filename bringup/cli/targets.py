"""`bringup targets`: the targets that a model can be compiled for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from bringup.cli.errors.failures import warn
from bringup.cli.parameters.outputs import text_or_json
from bringup.diagnostics import BringupError
from bringup.render.json_text import json_text
from bringup.render.words import table

if TYPE_CHECKING:
    from bringup.compile.targets.registry import Registered
    from bringup.compile.targets.target import Option, Target


@click.command("targets")
@text_or_json
def command(form: str) -> None:
    """List the targets: what they require, their options for --target-option, and their devices for run --executor."""
    from bringup.compile.targets.registry import registered

    failed: list[BringupError] = []
    found = [_facts(each) for each in registered(failed)]
    if form == "json":
        broken = [finding.as_json() for error in failed for finding in error.findings]
        print(json_text({"targets": found, "broken": broken}), end="")
        return
    print("\n\n".join("\n".join(_lines(alike)) for alike in _families(found)))
    warn(failed)


def _facts(each: Registered) -> dict[str, Any]:
    from bringup.compile.targets.registry import aliases, family_of
    from bringup.compile.targets.requirements import installed

    target = each.target
    requires = {name: installed(name) or None for name in target.requires}
    return {
        "name": target.name,
        "family": family_of(target),
        "aliases": [alias for alias, name in aliases().items() if name == target.name],
        "summary": target.summary,
        "package": each.package or "bringup",
        "installed": all(requires.values()),
        "requires": requires,
        "options": {name: _option(option) for name, option in target.options.items()},
        "phases": list(target.phases),
        "devices": _devices(target) if all(requires.values()) else [],
    }


def _devices(target: Target) -> list[str]:
    try:
        return list(target.devices())
    except (
        ImportError,
        OSError,
        RuntimeError,
        ValueError,
        LookupError,
        AttributeError,
    ):  # its packages are installed but cannot be imported
        return []


def _option(option: Option) -> dict[str, Any]:
    choices: Sequence[str] = () if callable(option.choices) else option.choices
    return {"default": option.default, "choices": list(choices), "kind": option.kind, "help": option.help}


def _families(found: Sequence[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Targets of one family as one group, every other one alone."""
    families: dict[str, list[dict[str, Any]]] = {}
    for facts in found:
        families.setdefault(facts["family"] or facts["name"], []).append(facts)
    yield from families.values()


def _lines(alike: Sequence[dict[str, Any]]) -> Iterator[str]:
    """The names and the summary, then a table."""
    facts = alike[0]
    yield f"{', '.join([*(each['name'] for each in alike), *facts['aliases']])}: {facts['summary']}"
    requires = [f"{name} {version or '(not installed)'}" for name, version in facts["requires"].items()]
    rows = [("  package", facts["package"]), ("  requires", ", ".join(requires) or "nothing")]
    rows += [("  option", _described(name, option)) for name, option in facts["options"].items()]
    rows += [("  phases", ", ".join(facts["phases"]))] if facts["phases"] else []
    rows += [("  devices", ", ".join(facts["devices"]))] if facts["devices"] else []
    yield table(rows)


def _described(name: str, option: dict[str, Any]) -> str:
    """`pack-weights=yes|no (default: yes): …`; an empty default is not shown."""
    values = "|".join(option["choices"]) or option["kind"].upper()
    default = f" (default: {option['default']})" if option["default"] != "" else ""
    return f"{name}={values}{default}: {option['help']}"
