"""The `bringup` command: finds the subcommand, and turns what goes wrong into words and an exit code."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

import click

from bringup import __version__
from bringup.diagnostics import did_you_mean

COMMANDS = ("compile", "check", "run", "verify", "explain", "models", "doctor")
WRONG_COMMAND, INTERRUPTED = 2, 130


class Bringup(click.Group):
    """Subcommands are imported when they are asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return import_module(f"bringup.cli.{cmd_name}").command if cmd_name in COMMANDS else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in COMMANDS and not args[0].startswith("-"):
            hint = did_you_mean(args[0], COMMANDS) or f"there are {', '.join(COMMANDS)}"
            raise click.UsageError(f"there is no command `{args[0]}`; {hint}", ctx)
        return super().resolve_command(ctx, args)

    def main(self, args: Sequence[str] | None = None, *rest: object, **extra: object) -> NoReturn:
        """Runs the command and exits; click's own runner for tests comes in here too."""
        sys.exit(self._exit_code(list(sys.argv[1:] if args is None else args)))

    def _exit_code(self, words: list[str]) -> int:
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]  text files, both
        try:
            return super().main(words, "bringup", standalone_mode=False) or 0
        except click.ClickException as error:
            error.show()
            return WRONG_COMMAND
        except (click.Abort, KeyboardInterrupt):
            return INTERRUPTED
        except Exception as error:
            from bringup.cli.failures import told

            return told(error, verbose="-v" in words or "--verbose" in words)


@click.group(cls=Bringup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="bringup")
@click.option("-v", "--verbose", is_flag=True, help="Show the traceback of an error.")
def cli(verbose: bool) -> None:
    """Takes a model from a published checkpoint to a compiled graph that runs, and proves each step."""


def main() -> NoReturn:
    cli.main()
