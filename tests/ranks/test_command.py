"""`bringup verify --tp N`."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig

import bringup
from bringup.adapters import Parallel
from bringup.cli.main import cli
from bringup.diagnostics import BringupError
from bringup.testing import assert_ranks
from tests.models import parity
from tests.ranks.test_faults import MIXTRAL, SIZES


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    """In bfloat16: ranks are compared in float32."""
    return str(parity.save_checkpoint(LlamaConfig(**SIZES), tmp_path_factory.mktemp("llama"), "bfloat16"))


def run(*words: str) -> Any:
    return CliRunner().invoke(cli, ["verify", *words])


def test_the_result(checkpoint: str) -> None:
    result = run("--checkpoint", checkpoint, "--tp", "2", "--pp", "2", "--prompt-length", "20")
    assert result.exit_code == 0, result.output
    first, last = result.stdout.splitlines()[0], result.stdout.splitlines()[-1]
    assert first.startswith("tp 2, pp 2")
    assert last == (f"{checkpoint}: agrees on 4 ranks with the undivided graph (20 tokens, float32, tolerance 0.0002)")
    assert re.search(r"^all \d\d modules agree; ", result.stdout, re.MULTILINE)


def test_json(tmp_path: Path) -> None:
    folder = str(parity.save_checkpoint(MIXTRAL, tmp_path))
    found = json.loads(run("--checkpoint", folder, "--tp", "4", "--ep", "2", "--tokens", "1,2,3", "--json").stdout)
    assert (found["ok"], found["target"], found["tokens"], found["dtype"]) == (True, "4 ranks", 3, "float32")


def test_a_bundle(checkpoint: str, tmp_path: Path) -> None:
    """Its job is divided; the bundle itself has the weights of all ranks, and its parity.json does not change."""
    bundle = bringup.build(bringup.open_job(checkpoint=checkpoint), out=tmp_path / "b", target="torch", max_seq_len=64)
    result = run(str(bundle), "--tp", "2")
    assert result.exit_code == 0, result.output
    assert not (bundle / "parity.json").exists()
    assert bringup.verify_ranks(bundle, parallel=Parallel(tp=2)).ok
    for words in (("--config", "no.json"), ("--adapter", "no.py"), ("--allow-config", "a=b")):
        result = run(str(bundle), "--tp", "2", *words)
        assert (result.exit_code, f"leave out {words[0]}" in result.output) == (2, True), result.output


def test_a_bundle_with_the_name_of_a_model(checkpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a path it is the bundle."""
    job = bringup.open_job(checkpoint=checkpoint)
    bringup.build(job, out=tmp_path / "gpt2", target="torch", max_seq_len=64)
    monkeypatch.chdir(tmp_path)
    assert bringup.verify_ranks(Path("gpt2"), parallel=Parallel(tp=2)).model == "llama"
    # rounding decides which module has the largest difference: another one on another processor
    assert re.search(r"of model\.(layers\.\d|norm)", run("./gpt2", "--tp", "2").stdout)


@pytest.mark.parametrize(
    "words", [("--bisect",), ("--dtype", "float32"), ("--target", "cpu"), ("--against", "x.npz"), ("--save", "x")]
)
def test_options_that_do_not_apply(words: tuple[str, ...], checkpoint: str) -> None:
    result = run("--checkpoint", checkpoint, "--tp", "2", *words)
    assert result.exit_code == 2
    assert f"leave out {words[0]}" in result.output


@pytest.mark.parametrize(
    ("words", "code", "status"),
    [
        (("--tp", "3"), "BU130", 1),
        (("--ep", "2"), "BU130", 1),
        (("--tp", "2", "--redundant-experts", "2"), "BU138", 1),
        (("--redundant-experts", "2"), "BU138", 1),
        (("--expert-map", "no.json"), "BU034", 2),
        (("--pp", "3"), "BU045", 2),
        (("--tp", "2", "--tokens", "97"), "BU015", 2),
        (("--tp", "2", "--prompt-length", "129"), "129 tokens are more than the model's 128 positions", 2),
    ],
)
def test_what_does_not_fit(words: tuple[str, ...], code: str, status: int, checkpoint: str) -> None:
    result = run("--checkpoint", checkpoint, *words)
    assert (result.exit_code, code in result.output) == (status, True), result.output


def test_no_prompt(checkpoint: str) -> None:
    with pytest.raises(BringupError, match="BU015"):
        bringup.verify_ranks("llama", checkpoint, parallel=Parallel(tp=2), prompt_tokens=[])


def test_the_assertion(checkpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_ranks("llama", checkpoint, tp=2, pp=2)
    with pytest.raises(pytest.fail.Exception, match=r"\[BU130\] .*among 3 ranks"):
        assert_ranks("llama", checkpoint, tp=3)
    monkeypatch.setattr("bringup.adapters.apply.rank_plan.is_added_later", lambda *_: True)  # no rank has these biases
    biased = LlamaConfig(**SIZES, mlp_bias=True, attention_bias=True)
    folder = parity.save_checkpoint(biased, Path(checkpoint).parent / "biased")
    with pytest.raises(pytest.fail.Exception, match=r"(?s)BU710.*llama: departs on 2 ranks"):
        assert_ranks("llama", folder, tp=2)


def test_errors_of_the_check(checkpoint: str, tmp_path: Path) -> None:
    folder = tmp_path / "short"
    shutil.copytree(checkpoint, folder)
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, folder / "model.safetensors")
    result = run("--checkpoint", str(folder), "--tp", "2")
    assert (result.exit_code, "error[BU101]" in result.output) == (1, True), result.output
