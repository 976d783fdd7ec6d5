"""Exit codes and what is said when something else than the model is wrong."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from types import FunctionType, SimpleNamespace

import click
import pytest

from bringup.cli import main
from bringup.cli.environment.packages import needed
from bringup.cli.main import cli
from bringup.compile.program.export_options import DEFAULT_CONTEXT
from tests.cli.conftest import Bringup


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch):
    """Makes `bringup models` end with an error."""

    def fail_with(error: BaseException) -> None:
        code = compile("raise error", main.__file__, "exec")  # what the mistake of a file of bringup's looks like
        stub = SimpleNamespace(command=click.Command("models", callback=FunctionType(code, {"error": error})))
        monkeypatch.setattr(main, "import_module", lambda name: stub)

    return fail_with


def test_version_help_and_lists(bringup: Bringup) -> None:
    output = bringup("--version").output
    assert output == bringup("-V").output
    assert re.fullmatch(
        rf"bringup {version('bringup')} \(python [\d.]+, .*torch {re.escape(version('torch'))}, .*\)\n", output
    )
    for words in (["--help"], ["-h"], *([command, "--help"] for command in main.COMMANDS)):
        assert bringup(*words).exit_code == 0
    assert "hf://openai-community/gpt2\n" in bringup("models").output
    assert "LlamaForCausalLM" in bringup("models").output


def test_help_lists_shared_options_in_sections_of_their_own(bringup: Bringup) -> None:
    """Each option once, those of the command first."""
    text = bringup("compile", "--help").stdout
    own, checkpoint, loras = re.split(r"\n(?:Model and checkpoint|LoRAs at run time):\n", text.partition("Options:")[2])
    listed = [re.findall(r"^  (?:-\w, )?(--[\w-]+)", part, re.MULTILINE) for part in (own, checkpoint, loras)]
    assert listed[1][:2] == ["--checkpoint", "--also"]
    assert listed[2][0] == "--max-lora-rank"
    assert {"--target", "--out", "--help"} <= set(listed[0])
    ctx = click.Context(main.cli)
    command = main.cli.get_command(ctx, "compile")
    expected = [next(name for name in option.opts if name[:2] == "--") for option in command.get_params(ctx)[1:]]
    assert sorted([*listed[0], *listed[1], *listed[2]]) == sorted(expected)


def test_no_arguments_are_a_mistake_that_shows_the_help(bringup: Bringup) -> None:
    result = bringup()
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("Usage: bringup [OPTIONS] COMMAND")


def test_the_help_imports_no_command() -> None:
    script = "import sys; from bringup.cli.main import main\ntry: main()\nfinally: print(sorted(sys.modules))"
    output = subprocess.run([sys.executable, "-c", script, "--help"], capture_output=True, text=True, check=True).stdout
    assert all(f"  {name} " in output for name in main.COMMANDS)
    loaded = {name for name in output.splitlines()[-1].split("'") if name.startswith("bringup.")}
    assert not loaded & {f"bringup.cli.{name}" for name in (*main.COMMANDS, "options")}
    assert not {name for name in loaded if name.startswith(("bringup.compile", "bringup.adapters", "bringup.graphs"))}


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (ModuleNotFoundError("No module named 'torch'", name="torch"), 3, "pip install 'bringup[compile]'"),
        (ModuleNotFoundError("…", name="gguf"), 3, "= help: run: pip install gguf\n"),  # and not torch with it
        (ModuleNotFoundError("…", name="llvmlite.binding"), 3, "= help: run: pip install 'bringup[llvm]'\n"),
        (ModuleNotFoundError("…", name="iree.compiler.ir"), 3, "`iree-base-compiler` is not installed"),
        (ImportError("libcudart.so", name="torch._C"), 3, "`torch` cannot be loaded: libcudart.so"),
        (
            PermissionError(13, "Permission denied", "/x"),
            3,
            "error[BU901]: permission denied: `/x`\n  = help: this user may not access it",
        ),
        (ModuleNotFoundError("…", name="bringup.nowhere"), 101, "this is a bug in bringup"),
        (ZeroDivisionError("division by zero"), 101, "ZeroDivisionError: division by zero"),
        (RecursionError("maximum recursion depth exceeded"), 101, "RecursionError: maximum recursion depth exceeded"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_exit_codes(bringup: Bringup, failing, error: BaseException, code: int, said: str) -> None:
    failing(error)
    result = bringup("models")
    assert result.exit_code == code
    assert said in result.stderr
    assert "Traceback" not in result.output


@pytest.mark.parametrize("words", [["-v", "models"], ["models", "-v"], ["models", "--verbose"]])
def test_a_traceback_only_on_request(bringup: Bringup, failing, words: list[str]) -> None:
    failing(ZeroDivisionError("division by zero"))
    assert "Traceback" in bringup(*words).stderr
    assert "Traceback" not in bringup("models").stderr


def test_verbose_stands_anywhere(bringup: Bringup) -> None:
    for words in (["-v", "cache", "ls"], ["cache", "-v", "ls"], ["cache", "ls", "-v"], ["doctor", "-v", "--json"]):
        assert bringup(*words).exit_code == 0


def test_verbose_is_an_option_and_no_other_word(bringup: Bringup, failing) -> None:
    failing(ZeroDivisionError("division by zero"))
    assert "Traceback" not in bringup("models", "--", "-v").stderr


@pytest.mark.parametrize(
    ("line", "said", "help"),
    [
        ("check", "neither a model nor a checkpoint is named", "give a MODEL (`bringup models` lists them)"),
        ("check a b", "got unexpected extra argument (b)", "`bringup check --help` lists the options"),
        ("run", "`BUNDLE` is missing", "usage: bringup run [OPTIONS] BUNDLE"),
        ("init", "`--checkpoint SRC` is missing", "usage: bringup init --checkpoint SRC [OPTIONS]"),
        ("check gpt2 --tp x", "`--tp`: `x` is not an integer", "`bringup check --help`"),
        ("check gpt2 --tp", "option `--tp` requires an argument", "`bringup check --help` lists the options"),
        ("run x --tokens 1 --top-p 7", "`--top-p`: 7.0 is not in the range 0<x<=1", "`bringup run --help`"),
        ("check gpt2 --checkpoint ./x --revision y", "--revision applies to a checkpoint", "leave it out"),
    ],
)
def test_wrong_usage_is_reported_like_all_else(bringup: Bringup, line: str, said: str, help: str) -> None:
    result = bringup(*line.split())
    output = result.stdout + result.stderr
    assert result.exit_code == 2
    assert re.match(rf"error\[BU02[34]\]: {re.escape(said)}", output), output
    assert f"\n  = help: {help}" in output or help in output
    assert "Usage:" not in output


def test_a_stream_that_takes_no_more() -> None:
    """The reader went away, the disk is full: one line or none, and nothing from the interpreter as it ends."""
    command = [sys.executable, "-m", "bringup", "models"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr.count("error[BU90")) == (3, 1)
    assert "Exception ignored" not in done.stderr
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


def test_packages_are_found_by_module() -> None:
    assert [package and package.name for package in map(needed, ("iree", "torch.nn", "torchvision", ""))] == [
        "iree-base-compiler",
        "torch",
        None,
        None,
    ]


def every_option() -> Iterator[tuple[str, click.Option]]:
    """The options of all commands, with the command's name."""

    def of(command: click.Command, name: str) -> Iterator[tuple[str, click.Option]]:
        if isinstance(command, click.Group):
            for word in command.list_commands(context):
                inner = command.get_command(context, word)
                assert inner
                yield from of(inner, f"{name} {word}".strip())
        else:
            yield from ((name, option) for option in command.params if isinstance(option, click.Option))

    context = click.Context(cli)
    yield from of(cli, "")


def test_no_option_accepts_nan() -> None:
    fractions = [each for each in every_option() if isinstance(each[1].type, click.types.FloatParamType)]
    for _, option in fractions:
        with pytest.raises(click.BadParameter, match="nan is not in the range"):
            option.type.convert("nan", option, None)
    assert ("fit", "--memory-share") in [(name, option.opts[0]) for name, option in fractions]


def test_defaults_are_shown_in_one_form() -> None:
    """By click, or as `; default: …`; and that of a context is the one that `compile` uses."""
    helps = {(name, option.opts[0]): option.help or "" for name, option in every_option()}
    assert [where for where, text in helps.items() if "[" in text or "Default" in text] == []
    assert f"at most {DEFAULT_CONTEXT}" in helps["compile", "--max-seq-len"]
