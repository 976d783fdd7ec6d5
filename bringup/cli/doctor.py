"""`bringup doctor`: versions, devices and folders, their problems, and the command that fixes each."""

from __future__ import annotations

import json
from collections.abc import Iterator

import click

from bringup.cli.environment.health import MAIN_JOB, Fact
from bringup.render.words import plural, table

BROKEN = 3  # exit code: an error of the machine


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of a table.")
def command(as_json: bool) -> int:
    """Show versions, devices, caches and settings, with a fix for each problem.

    Does not import the packages that it lists. Exits with 3 if `bringup compile` and `bringup run` cannot work.
    """
    sections = {title: list(facts) for title, facts in _sections()}
    problems = [fact for facts in sections.values() for fact in facts if fact.problem]
    broken = any(fact.weight == MAIN_JOB for fact in problems)
    if as_json:
        print(json.dumps({"ok": not broken, **_plain(sections), "problems": [fact.as_json() for fact in problems]}))
        return BROKEN if broken else 0
    print("\n\n".join(table([(fact.name, fact.value) for fact in facts]) for facts in sections.values() if facts))
    for fact in problems:
        print(f"\n{fact.weight}: {fact.problem}\n  = fix: {fact.fix}")
    print(f"\n{plural(len(problems), 'problem')}" if problems else "\nno problems found")
    return BROKEN if broken else 0


def _sections() -> Iterator[tuple[str, Iterator[Fact]]]:
    from bringup.cli.environment import health, machine

    yield "bringup", health.itself()
    yield "packages", health.packages()
    yield "devices", machine.devices()
    yield "limits", machine.limits()
    yield "places", health.places()
    yield "hub", health.hub()


def _plain(sections: dict[str, list[Fact]]) -> dict[str, dict[str, str]]:
    return {title: {fact.name: fact.value for fact in facts} for title, facts in sections.items()}
