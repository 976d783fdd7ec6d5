"""The `bringup` command: finds the subcommand, and converts errors to messages and an exit code."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

import click

from bringup import streams
from bringup.cli.errors import reserve
from bringup.system import gc_pause, signals

COMMANDS = {
    "compile": "Compile a model and its weights to a bundle.",
    "check": "Check that a checkpoint fits a graph.",
    "inspect": "Print the contents of a checkpoint: tensors, config, tokenizer.",
    "init": "Draft the graph, adapter and test of a new architecture.",
    "run": "Generate text, or token ids, from a bundle.",
    "bench": "Measure a bundle or a model, and compare with other engines.",
    "serve": "Serve a bundle over HTTP with OpenAI's API.",
    "verify": "Compare a model or a bundle with its reference implementation.",
    "explain": "Explain a code, a parameter or a tensor.",
    "convert": "Write a checkpoint's weights for a graph, for ranks or for other programs.",
    "export": "Write a model's weights in their published layout.",
    "diff": "Print the differences between two checkpoints, bundles or plans.",
    "fit": "Print whether a model fits into a device's memory.",
    "lock": "Write a model's plan to a file, or check that it has not changed.",
    "lora": "Check, convert or merge a LoRA of a model.",
    "models": "List models and model families.",
    "kernels": "Test the compiled kernels of a bundle, without a GPU.",
    "targets": "List the targets that a model can be compiled for.",
    "doctor": "Report what is missing on this machine and how to install it.",
    "cache": "Show, explain or remove cached results of compiles.",
    "completion": "Print a shell's completion script.",
}
WEIGHTS = ("convert", "diff", "export", "fit", "init", "lock", "lora")
LAUNCHES = ("bench", "kernels")
# Commands in other folders of bringup/cli.
FOLDERS = {**dict.fromkeys(WEIGHTS, ".weights"), **dict.fromkeys(LAUNCHES, ".launches"), "serve": ".serving"}


class Bringup(click.Group):
    """Subcommands are imported on first use."""

    verbose = False

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Prints the table above, so that `--help` imports no command."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        with gc_pause.gc_paused():
            folder = f"bringup.cli{FOLDERS.get(cmd_name, '')}"
            return _with_verbose(import_module(f"{folder}.{cmd_name}").command)

    def main(self, args: Sequence[str] | None = None, *rest: object, **extra: object) -> NoReturn:
        """Runs the command and exits; click's test runner calls it too."""
        sys.exit(self._exit_code(list(sys.argv[1:] if args is None else args)))

    def _exit_code(self, words: list[str]) -> int:
        self.verbose = False
        streams.open_closed()
        if "_BRINGUP_COMPLETE" in os.environ:  # a shell requests completions
            import_module("bringup.cli.completion")
            super().main(words, "bringup")
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]  text files, both
        try:
            code = self._ended(words)
            sys.stdout.flush()  # an error of the stream at exit could not be reported
            return code
        except (click.Abort, KeyboardInterrupt) as error:
            return signals.report_stop(error)
        except SystemExit as left:  # if a user's file exits, the command has not succeeded
            from bringup.cli.errors.culprit import of_user_code
            from bringup.cli.errors.failures import report_error

            if (known := of_user_code(left)) is None:
                raise
            return report_error(known, words, verbose=self.verbose)
        except Exception as error:
            from bringup.cli.errors.failures import report_error

            return report_error(error, words, verbose=self.verbose)

    def _ended(self, words: list[str]) -> int:
        """The exit code of a command line, also if it only prints help or versions."""
        try:
            with self.make_context("bringup", words) as ctx:
                return self.invoke(ctx) or 0
        except click.exceptions.Exit as ended:
            return ended.exit_code


def _with_verbose(command: click.Command) -> click.Command:
    """The command, and its subcommands, with the option -v, which is allowed anywhere."""
    if VERBOSE not in command.params:
        command.params.append(VERBOSE)
    for inner in command.commands.values() if isinstance(command, click.Group) else ():
        _with_verbose(inner)
    return command


def _verbose(ctx: click.Context, option: click.Parameter, value: bool) -> None:
    root = ctx.find_root().command
    if value and isinstance(root, Bringup):
        root.verbose = True


def _version(ctx: click.Context, option: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from bringup.cli.environment.packages import versions

        print(versions())
        ctx.exit()


VERBOSE = click.Option(
    ["-v", "--verbose"],
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_verbose,
    help="Show the traceback of an error.",
)
VERSION = click.Option(
    ["-V", "--version"], is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Show versions."
)


@click.group(cls=Bringup, params=[VERSION, VERBOSE], context_settings={"help_option_names": ["-h", "--help"]})
def cli() -> None:
    """Compiles models from published checkpoints, and checks each step."""


NANOBIND = {"iree.runtime", "triton._C.libtriton"}  # bindings that list uncollected objects at exit


def main() -> NoReturn:
    signals.catch()
    reserve.hold()
    try:
        cli.main()
    finally:
        if not sys.modules.keys() & NANOBIND:
            gc.freeze()  # a collection at exit takes another second after tracing
        if not cli.verbose:
            sys.unraisablehook = lambda unraisable: None  # errors of libraries at exit
