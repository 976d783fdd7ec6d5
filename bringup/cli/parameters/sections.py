"""Sections of `COMMAND --help`: options that several commands share follow those of the command."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click

Command = Callable[..., Any]


class SharedOption(click.Option):
    """An option that `--help` lists in the section `section`."""

    def __init__(self, *args: Any, section: str, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.section = section


class SectionedCommand(click.Command):
    """A command whose help has a section for its own options, then one for each section of its shared options."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {"Options": []}
        for option in self.get_params(ctx):
            section = option.section if isinstance(option, SharedOption) else "Options"
            if isinstance(option, click.Option) and (record := option.get_help_record(ctx)):
                sections.setdefault(section, []).append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)


def with_options(command: Command, options: Sequence[Callable[[Command], Command]]) -> Command:
    """The command with options, in their order in the list."""
    for option in reversed(options):
        command = option(command)
    return command
