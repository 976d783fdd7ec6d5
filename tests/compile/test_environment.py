"""Programs that bringup starts see none of the user's variables but those that they need: no token, no key."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from bringup.compile.text import limited_process
from bringup.compile.text.chat import Chat
from bringup.compile.text.tokenizer import load_tokenizer
from bringup.system.environment import minimal
from tests.compile.bpe import trained

SECRET = "hf_dont_tell_anyone"
NAMES = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "AWS_SECRET_ACCESS_KEY", "XKCD_936", "SSH_AUTH_SOCK", "HOME")
MLIR = "module { util.func public @f(%arg0: tensor<4xf32>) -> tensor<4xf32> { util.return %arg0 : tensor<4xf32> } }"


@pytest.fixture(autouse=True)
def secrets(monkeypatch):
    for name in NAMES:
        monkeypatch.setenv(name, SECRET)


def noted(folder: Path, program: str) -> tuple[str, Path]:
    """A program that writes its environment to a file, then becomes `program`; and the file."""
    script, note = folder / "program.sh", folder / "environment.txt"
    script.write_text(f'#!/bin/sh\n/usr/bin/env > {shlex.quote(str(note))}\nexec {shlex.quote(program)} "$@"\n')
    script.chmod(0o755)
    return str(script), note


def check(note: Path) -> None:
    variables = dict(line.partition("=")[::2] for line in note.read_text().splitlines())
    assert "PATH" in variables
    assert SECRET not in note.read_text()
    assert {*variables}.isdisjoint(NAMES)


def test_a_chat_template_is_rendered_without_them(tmp_path, monkeypatch):
    program, note = noted(tmp_path, sys.executable)
    monkeypatch.setattr(limited_process.sys, "executable", program)
    text = Chat("{{ messages[0].content }}!").render([{"role": "user", "content": "hello"}])
    assert text == "hello!"
    check(note)


def test_a_tokenizer_is_tried_without_them(tmp_path, monkeypatch):
    program, note = noted(tmp_path, sys.executable)
    monkeypatch.setattr(limited_process.sys, "executable", program)
    path = tmp_path / "tokenizer.json"
    path.write_text(trained("gpt-2").to_str())
    assert load_tokenizer(path).encode("a")
    check(note)


def test_iree_compiles_without_them(tmp_path, monkeypatch):
    from iree.compiler.tools import binaries

    from bringup.compile.targets.lowering import compile_mlir

    program, note = noted(tmp_path, binaries.find_tool("iree-compile"))
    monkeypatch.setattr(binaries, "find_tool", lambda name: program)
    assert compile_mlir(MLIR)
    check(note)


def test_what_is_given_is_added_and_a_path_is_always_there(monkeypatch):
    monkeypatch.delenv("PATH")
    monkeypatch.setenv("TMPDIR", "/elsewhere")
    variables = minimal(TMPDIR="/here")
    assert (variables["TMPDIR"], bool(variables["PATH"])) == ("/here", True)
