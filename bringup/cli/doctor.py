"""`bringup doctor`: versions, devices and folders, their problems, and the command that fixes each."""

from __future__ import annotations

import json
from collections.abc import Iterator

import click

from bringup.cli.environment.health import MAIN_JOB, MISSING, Fact
from bringup.cli.parameters.outputs import text_or_json
from bringup.render.words import plural, table

BROKEN = 3  # exit code: an error of the machine


@click.command("doctor")
@text_or_json
def command(form: str) -> int:
    """Show versions, devices, caches and settings, with a fix for each problem.

    Does not import the packages that it lists. Exits with 3 if there is an error: `bringup compile` or `bringup run` is
    installed and cannot work, or neither is installed. If the packages of `compile` are absent and `run` works, which
    is so with the extra [llvm] alone, it exits with 0. Warnings do not change the exit code.
    """
    sections = {title: list(facts) for title, facts in _sections()}
    problems = [fact for facts in sections.values() for fact in facts if fact.problem]
    broken = any(fact.weight == MAIN_JOB for fact in problems)
    if form == "json":
        print(json.dumps({"ok": not broken, **_plain(sections), "problems": [fact.as_json() for fact in problems]}))
        return BROKEN if broken else 0
    print("\n\n".join(table([(fact.name, fact.value) for fact in facts]) for facts in sections.values() if facts))
    for weight, problem, fix in _together(problems):
        print(f"\n{weight}: {problem}\n  = fix: {fix}")
    count = len(list(_together(problems)))
    print(f"\n{plural(count, 'problem')}" if problems else "\nno problems found")
    return BROKEN if broken else 0


def _together(problems: list[Fact]) -> Iterator[tuple[str, str, str]]:
    """Severity, problem and fix; missing packages that one command installs are one problem."""
    missing: dict[tuple[str, str], list[str]] = {}
    for fact in problems:
        if fact.problem.endswith(MISSING):
            missing.setdefault((fact.weight, fact.fix), []).append(fact.problem.removesuffix(MISSING))
    for fact in problems:
        names = missing.pop((fact.weight, fact.fix), []) if fact.problem.endswith(MISSING) else [fact.problem]
        if len(names) > 1:
            yield fact.weight, f"{', '.join(names[:-1])} and {names[-1]} are not installed", fact.fix
        elif names:
            yield fact.weight, fact.problem, fact.fix


def _sections() -> Iterator[tuple[str, Iterator[Fact]]]:
    from bringup.cli.environment import health, machine

    yield "bringup", health.itself()
    found = list(health.packages())
    yield "features", health.features(found)
    yield "packages", iter(found)
    yield "devices", machine.devices()
    yield "limits", machine.limits()
    yield "places", health.places()
    yield "hub", health.hub()


def _plain(sections: dict[str, list[Fact]]) -> dict[str, dict[str, str]]:
    return {title: {fact.name: fact.value for fact in facts} for title, facts in sections.items()}
