"""Exit codes and what is said when something else than the model is wrong."""

from __future__ import annotations

from importlib.metadata import version
from types import SimpleNamespace

import click
import pytest

from bringup.cli import main
from bringup.cli.packages import needed
from tests.cli.conftest import Bringup


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch):
    """Makes `bringup models` end with an error."""

    def fail_with(error: BaseException) -> None:
        def stop() -> None:
            raise error

        stub = SimpleNamespace(command=click.Command("models", callback=stop))
        monkeypatch.setattr(main, "import_module", lambda name: stub)

    return fail_with


def test_version_help_and_lists(bringup: Bringup) -> None:
    assert bringup("--version").output == f"bringup, version {version('bringup')}\n"
    for words in (["--help"], ["-h"], *([command, "--help"] for command in main.COMMANDS)):
        assert bringup(*words).exit_code == 0
    assert "hf://openai-community/gpt2\n" in bringup("models").output
    assert "LlamaForCausalLM" in bringup("models").output


def test_doctor_tells_what_is_missing(bringup: Bringup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bringup.cli.doctor._version", lambda name: "9.9" if name == "numpy" else "")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    lines = bringup("doctor").output.splitlines()
    rows = {line.split("  ")[0]: line for line in lines if line}
    assert rows["numpy"].endswith(" 9.9")
    assert rows["torch"].endswith(" missing; pip install 'bringup[compile]'")
    assert rows["offline"].endswith("yes, by HF_HUB_OFFLINE")


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (ModuleNotFoundError("No module named 'torch'", name="torch"), 3, "pip install 'bringup[compile]'"),
        (ModuleNotFoundError("…", name="iree.compiler.ir"), 3, "`iree-base-compiler` is not installed"),
        (ImportError("libcudart.so", name="torch._C"), 3, "`torch` cannot be loaded: libcudart.so"),
        (PermissionError(13, "Permission denied", "/x"), 3, "error[BU901]: permission denied: `/x`"),
        (ModuleNotFoundError("…", name="bringup.nowhere"), 101, "this is a bug in bringup"),
        (ZeroDivisionError("division by zero"), 101, "ZeroDivisionError: division by zero"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_exit_codes(bringup: Bringup, failing, error: BaseException, code: int, said: str) -> None:
    failing(error)
    result = bringup("models")
    assert result.exit_code == code
    assert said in result.stderr
    assert "Traceback" not in result.output


def test_a_traceback_only_when_asked(bringup: Bringup, failing) -> None:
    failing(ZeroDivisionError("division by zero"))
    assert "Traceback" in bringup("-v", "models").stderr


def test_packages_are_found_by_module() -> None:
    assert [package and package.name for package in map(needed, ("iree", "torch.nn", "torchvision", ""))] == [
        "iree-base-compiler",
        "torch",
        None,
        None,
    ]
