"""The outputs of a report: one format on the terminal, others in files."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click

from bringup.cli.parameters.sections import Command, with_options
from bringup.cli.parameters.words import OneOf
from bringup.diagnostics import Report, fail
from bringup.render.formats.by_name import FORMATS, render
from bringup.render.terminal import Paint, on_github
from bringup.render.write import check_report, write_whole

TEXT = "full"  # the default
TEXTS = ("full", "concise")  # for people: other text may be printed with it


class Output(NamedTuple):
    """A format, and its file; None is stdout."""

    format: str
    file: Path | None = None


class _Output(click.ParamType[Output]):
    name = "format"
    formats = OneOf(FORMATS)

    def convert(self, value: str | Output, param: click.Parameter | None, ctx: click.Context | None) -> Output:
        if isinstance(value, Output):
            return value
        name, equals, file = value.partition("=")
        if equals and not file:
            self.fail(f"`{value}` names no file; write {name}=FILE", param, ctx)
        return Output(self.formats.convert(name, param, ctx), Path(file) if file else None)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
        return self.formats.shell_complete(ctx, param, incomplete)


_OPTIONS = (
    click.option(
        "--format",
        "formats",
        type=_Output(),
        multiple=True,
        metavar="FORMAT[=FILE]",
        envvar="BRINGUP_OUTPUT_FORMAT",
        help=f"{', '.join(FORMATS)}. Several at once: --format full --format sarif=report.sarif.",
    ),
    click.option(
        "-o",
        "--output-file",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Write the format to FILE, and text to the terminal.",
    ),
)


def output_options(command: Command) -> Command:
    """`--format` and `--output-file`, for commands with findings."""
    return with_options(command, _OPTIONS)


_TEXT_OR_JSON = (
    click.option(
        "--format", "form", type=OneOf(("text", "json")), default="text", show_default=True, help="Output format."
    ),
    click.option("--json", "form", flag_value="json", help="The same as --format json."),
)


def text_or_json(command: Command) -> Command:
    """`--format text|json`, and `--json`, for commands that print tables."""
    return with_options(command, _TEXT_OR_JSON)


def outputs_of(formats: Sequence[Output], file: Path | None) -> list[Output]:
    """One output to the terminal, by default text, and any number to files. Raises BU020, and BU021 if one of the
    files cannot be written.
    """
    shown = [output.format for output in formats if output.file is None]
    stored = [output for output in formats if output.file]
    if len(shown) > 1:
        raise fail("BU020", f"`{shown[0]}` and `{shown[1]}` both go to the terminal", help=f"write {shown[1]}=FILE")
    if file:
        stored.append(Output(shown.pop() if shown else TEXT, file))
    files = [output.file for output in stored if output.file]
    for name in files:
        check_report(name)
    twice = next((name for name in files if files.count(name) > 1), None)
    if twice:
        raise fail("BU020", f"two formats go to `{twice}`", help="give each its own file")
    return [Output(shown.pop() if shown else TEXT), *stored]


def deliver(report: Report, outputs: Sequence[Output]) -> None:
    """Prints and writes a report, with annotations for GitHub Actions unless another output has them. Raises BU021."""
    shown, *stored = outputs
    sys.stdout.write(render(shown.format, report, Paint.of(sys.stdout)))
    if on_github():
        sys.stdout.flush()
        from bringup.render.formats.actions import tell_github

        tell_github(report, annotate=shown.format != "github")
    for format, file in stored:
        if file:
            write_whole(file, render(format, report))
