"""A usage error as a diagnostic like any other."""

from __future__ import annotations

import re

import click

from bringup.diagnostics import BringupError, did_you_mean, fail


def of_usage(error: click.ClickException, command: str) -> BringupError:
    """BU023 for unknown or missing words, BU024 for an invalid value of an option.

    `command` is the first word of the command line: click's parser does not state the command of a missing value.
    """
    ctx = error.ctx if isinstance(error, click.UsageError) else None
    path = ctx.command_path if ctx else f"bringup {command}" if command.isalpha() else "bringup"
    help = f"`{path} --help` lists the options"
    if isinstance(error, click.exceptions.NoSuchCommand):
        known = ctx.command.list_commands(ctx) if ctx and isinstance(ctx.command, click.Group) else []
        name = f"{path} {error.command_name}".removeprefix("bringup ")
        hint = did_you_mean(error.command_name, known) or f"the commands are {', '.join(known)}"
        return fail("BU023", f"unknown command `{name}`", help=hint)
    if isinstance(error, click.NoSuchOption):
        known = [name for parameter in ctx.command.get_params(ctx) for name in parameter.opts] if ctx else []
        hint = _instead_of(error.option_name, [name for name in known if name.startswith("-")])
        return fail("BU023", f"`{path}` has no option `{error.option_name}`", help=hint or help)
    if isinstance(error, click.MissingParameter) and error.param:
        usage = ctx.command.get_usage(ctx).partition(":")[2].strip() if ctx else path
        missing = error.param.make_metavar(ctx or _NOWHERE)
        if error.param.opts[0].startswith("-"):  # click's usage names arguments only
            missing = f"{named(error.param)} {missing}"
            usage = usage.replace("[OPTIONS]", f"{missing} [OPTIONS]")
        return fail("BU023", f"`{missing}` is missing", help=f"usage: {usage}")
    if isinstance(error, click.BadParameter) and error.param:
        return fail("BU024", f"`{named(error.param)}`: {_in_house_style(error.message)}", help=help)
    message, _, more = _in_house_style(error.format_message()).partition("; ")
    return fail("BU023", message, help=more or help)


def _instead_of(given: str, known: list[str]) -> str | None:
    """What was meant by an unknown option: a setting of a target, one of similar letters, or one with all its words.

    None for an option of one letter, which differs from every other by one letter.
    """
    if len(given) <= 2:
        return None
    if "--target-option" in known and (setting := given.removeprefix("--")) in _settings():
        return f"it is a setting of targets: write `--target-option {setting}=VALUE`"
    words = set(given.strip("-").split("-"))
    longer = [name for name in known if words < set(name.strip("-").split("-"))]
    return did_you_mean(given, known) or (f"did you mean `{longer[0]}`?" if longer else None)


def _settings() -> set[str]:
    from bringup.compile.targets.registry import registered

    return {name for each in registered() for name in each.target.options}


def named(parameter: click.Parameter) -> str:
    """`--format`; for an argument its metavar."""
    return max(parameter.opts, key=len) if parameter.opts[0].startswith("-") else parameter.opts[0].upper()


def _in_house_style(text: str) -> str:
    """Click's messages in bringup's style: lower case, names in backticks, no final stop."""
    text = text.replace("a valid integer range", "an integer").replace("a valid float range", "a number")
    text = re.sub(r"(?<!\w)'([^']*)'", r"`\1`", text).removesuffix(".")
    return text[:1].lower() + text[1:]


_NOWHERE = click.Context(click.Command("bringup"))
