"""Options for targets: their names, options, phases and devices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from bringup.arguments import choice
from bringup.cli.parameters.usage import named
from bringup.cli.parameters.words import Word

if TYPE_CHECKING:
    from bringup.compile.targets.target import Target

Command = Callable[..., Any]
EVERY_TARGET = ("graph", "plan", "program", "bundle")  # phases


class _Phase(Word):
    """A phase of any target. Another word is BU024 with a suggestion; `build` checks the phases of the target."""

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value in EVERY_TARGET:
            return value
        return choice(named(param) if param else "this option", value, list(self.listed()))


class _Setting(click.ParamType[str]):
    """`NAME=VALUE`; a shell completes names, and listed values, for the target of the command line."""

    name = "text"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        name, equals, setting = value.partition("=")
        if not (name and equals and setting):
            self.fail(f"`{value}` is not NAME=VALUE", param, ctx)
        return value

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem[Any]]:
        target = _target_of(ctx)
        words = _settings(target) if target else ()
        return [CompletionItem(word) for word in words if word.startswith(incomplete)]


def target_options(command: Command) -> Command:
    """`--target-option`, as a mapping; the last value of a name is used."""

    def collect(ctx: click.Context, param: click.Parameter, words: Sequence[str]) -> Mapping[str, str]:
        return {name: value for name, _, value in (word.partition("=") for word in words)}

    option = click.option(
        "--target-option",
        type=_Setting(),
        multiple=True,
        callback=collect,
        metavar="NAME=VALUE",
        help="A setting of the target (repeatable); `bringup targets` lists them.",
    )
    return option(command)


def _names() -> Iterable[str]:
    from bringup.compile.targets.registry import names

    return names()


def _every() -> Iterator[Target]:
    from bringup.compile.targets.registry import registered

    return (each.target for each in registered())


def _phases() -> Iterable[str]:
    before, bundle = EVERY_TARGET[:-1], EVERY_TARGET[-1]
    return dict.fromkeys([*before, *(phase for target in _every() for phase in target.phases), bundle])


def _devices() -> Iterable[str]:
    """The devices of every target whose packages are installed."""
    from bringup.compile.targets.registry import registered
    from bringup.compile.targets.requirements import installed

    ready = (each.target for each in registered() if all(map(installed, each.target.requires)))
    return dict.fromkeys(device for target in ready for device in target.devices())


def _target_of(ctx: click.Context) -> Target | None:
    """The target that the command line names so far."""
    from bringup.compile.targets.registry import aliases

    name = ctx.params.get("target") or next((p.default for p in ctx.command.params if p.name == "target"), None)
    full = aliases().get(str(name), name)
    return next((target for target in _every() if target.name == full), None)


def _settings(target: Target) -> Iterator[str]:
    for name, option in target.options.items():
        values = () if callable(option.choices) else option.choices
        yield from (f"{name}={value}" for value in values or ("",))


TARGET = Word(_names)
PHASE = _Phase(_phases)
DEVICE = Word(_devices)
