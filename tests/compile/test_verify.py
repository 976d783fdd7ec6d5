"""`verify` on bundles: the job they were built from, files that changed, models that transformers does not know."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file, save_file
from transformers import GPT2Config, GPT2LMHeadModel

import bringup
from bringup.adapters.apply.materialise import materialise
from bringup.cli.main import cli
from bringup.compile.job import open_job
from bringup.compile.pipeline import build
from bringup.compile.verify.command import verify
from bringup.diagnostics import BringupError
from bringup.graphs.gpt2 import GPT2
from bringup.graphs.gpt2 import GPT2Config as OurConfig

SWAPPED = """
from bringup.adapters.algebra.expr import S
from bringup.adapters.gpt2 import adapter as published
from bringup.adapters.planning.adapter import Adapter


def adapter(config):
    table = published(config)
    built = Adapter("swapped", table.defaults, table.prefix, drops=table.drops)
    for rule in table.rules:
        built[rule.pattern] = rule.expr
    return built
"""

MODEL = """
from bringup.adapters.gpt2 import adapter
from bringup.graphs.gpt2 import GPT2, GPT2Config
from bringup.graphs.family import Family

family = Family(name="mine", graph=GPT2, config=GPT2Config, adapter=adapter, architectures=("MineForCausalLM",))
"""


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    """A checkpoint with biases and gains that matter."""
    folder = tmp_path_factory.mktemp("verify") / "model"
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=31, n_positions=64, n_layer=2, n_head=2, n_embd=8))
    for parameter in model.parameters():
        parameter.data.normal_(0, 0.5)
    model.save_pretrained(folder)
    return folder


@pytest.fixture
def checkpoint(saved, tmp_path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "model"))


def config(folder: Path, **changes: Any) -> dict[str, Any]:
    return json.loads((folder / "config.json").read_text()) | changes


def compiled(out: Path, *given: Any, **options: Any) -> str:
    return str(build(open_job(*given, **options), out=out, target="torch", buckets=(64,)))


MARKS = {"no-generation-config": pytest.mark.slow, "named-otherwise": pytest.mark.slow, "sharded": pytest.mark.slow}
FILES = ["one", "no-generation-config", "no-config", "sharded", "named-otherwise"]


@pytest.mark.parametrize("files", [pytest.param(name, marks=MARKS.get(name, ())) for name in FILES])
def test_a_bundle_with_another_config_is_verified_with_that_one(saved, checkpoint, files, tmp_path):
    if files == "sharded":
        GPT2LMHeadModel.from_pretrained(checkpoint).save_pretrained(tmp_path / "shards", max_shard_size="4kB")
        checkpoint = tmp_path / "shards"
        assert len(list(checkpoint.glob("*.safetensors"))) > 1
    if files == "no-generation-config":
        (checkpoint / "generation_config.json").unlink()
    if files == "named-otherwise":
        (checkpoint / "model.safetensors").rename(checkpoint / "weights.safetensors")
    other = tmp_path / "other.json"
    other.write_text(json.dumps(config(checkpoint, layer_norm_epsilon=1e-1, activation_function="gelu")))
    if files == "no-config":
        (checkpoint / "generation_config.json").unlink()
        (checkpoint / "config.json").unlink()
    out = compiled(tmp_path / "b", None, str(checkpoint), config=str(other))
    other.unlink()  # the manifest holds it
    parity = verify(out)
    assert parity.ok, parity
    assert json.loads(Path(out, "parity.json").read_text())["ok"]
    plain = bringup.load(compiled(tmp_path / "plain", None, str(saved)))
    assert not np.allclose(bringup.load(out).prefill([1, 2, 3]), plain.prefill([1, 2, 3]), atol=1e-2)


def test_dummy_weights_with_a_config_of_ones_own(saved, tmp_path):
    other = tmp_path / "tiny.json"
    other.write_text(json.dumps(config(saved)))
    assert verify(compiled(tmp_path / "b", "gpt2", "dummy", config=str(other))).ok


def test_allowed_config_keys_are_remembered(checkpoint, tmp_path):
    (checkpoint / "config.json").write_text(json.dumps(config(checkpoint, of_users=1)))
    with pytest.raises(BringupError, match="BU120"):
        compiled(tmp_path / "b", None, str(checkpoint))
    assert verify(compiled(tmp_path / "b", None, str(checkpoint), allow={"of_users": "only a note"})).ok


def test_the_adapter_and_relative_paths_are_remembered(checkpoint, tmp_path, monkeypatch):
    (tmp_path / "table.py").write_text(SWAPPED)
    monkeypatch.chdir(tmp_path)
    out = compiled(tmp_path / "b", None, "model", adapter="table.py")
    (tmp_path / "away").mkdir()
    monkeypatch.chdir(tmp_path / "away")
    assert verify(out).ok
    (tmp_path / "table.py").unlink()
    with pytest.raises(BringupError, match=r"BU004.*table\.py"):
        verify(out)


def test_changed_files_are_all_reported_and_nothing_is_run(saved, tmp_path, monkeypatch):
    out = Path(compiled(tmp_path / "b", None, str(saved)))
    program = next((out / "programs").iterdir())
    for path in (program, out / "weights.safetensors"):
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
    monkeypatch.setattr("bringup.compile.verify.command.load", lambda _: pytest.fail("loaded"))
    with pytest.raises(BringupError) as caught:
        verify(str(out))
    assert [(f.code, f.file) for f in caught.value.findings] == [
        ("BU608", f"programs/{program.name}"),
        ("BU608", "weights.safetensors"),
    ]


def test_arrays_in_memory_have_no_source(saved, tmp_path):
    graph = GPT2(OurConfig.from_hf(config(saved)))
    job = open_job(checkpoint=str(saved))
    out = build(graph, weights=materialise(job.plan, job.checkpoint), out=tmp_path / "b", target="torch", buckets=(64,))
    with pytest.raises(BringupError, match="BU005"):
        verify(str(out))


OWN = [
    ["--target", "cpu"],
    ["--dtype", "bfloat16"],
    ["--config", "c.json"],
    ["--adapter", "a.py"],
    ["--allow-config", "k=why"],
    ["--max-seq-len", "9"],
]


@pytest.mark.parametrize("option", OWN, ids=lambda option: option[0])
def test_a_bundle_has_what_it_was_compiled_with(option, tmp_path):
    (tmp_path / "manifest.json").touch()
    result = CliRunner().invoke(cli, ["verify", str(tmp_path), *option])
    assert (result.exit_code, f"leave out {option[0]}" in result.output) == (2, True), result.output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--tokens", "1,2", "--prompt-length", "3"], "either --tokens"),
        (["--tokens", "1,2", "--against", "a.npz"], "contains its own tokens"),
        ([], "neither a model nor a checkpoint"),
    ],
)
def test_options_that_do_not_go_together(words, said):
    result = CliRunner().invoke(cli, ["verify", *words])
    assert (result.exit_code, said in result.output) == (2, True), result.output


def test_what_check_takes_verify_takes(checkpoint, tmp_path):
    """MODEL left out; a config, an adapter and an allowance of one's own; a prompt, in a context of its length."""
    (tmp_path / "table.py").write_text(SWAPPED)
    (tmp_path / "c.json").write_text(json.dumps(config(checkpoint, of_users=1)))
    (checkpoint / "config.json").unlink()
    words = ["verify", "--checkpoint", checkpoint, "--config", tmp_path / "c.json", "--adapter", tmp_path / "table.py"]
    words += ["--allow-config", "of_users=only a note", "--max-seq-len", "50", "--prompt-length", "33", "--json"]
    result = CliRunner().invoke(cli, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert (found["ok"], found["tokens"]) == (True, 33 + 16)
    assert {difference["phase"] for difference in found["differences"]} >= {"decode"}


def test_every_length_that_a_model_is_compiled_for_runs(saved):
    """A prompt of 256 tokens would not fit: the model has 64 positions."""
    found = verify("gpt2", str(saved))
    assert [finding.code for finding in found.findings] == []
    assert [difference.phase for difference in found.differences] == ["prefill_32", "prefill_64", "decode"]


def test_a_prompt_of_ones_own(saved, monkeypatch):
    given: list[Any] = []
    monkeypatch.setattr(
        "bringup.compile.verify.command.feed", lambda session, tokens, runs: given.append(tokens) or 1 / 0
    )
    with pytest.raises(ZeroDivisionError):
        verify("gpt2", str(saved), prompt_tokens=[5, 6, 7], decode_steps=0)
    assert given == [[5, 6, 7]]


# --- models that transformers does not know


@pytest.mark.parametrize("bundled", [False, True])
def test_an_architecture_of_ones_own_has_no_reference(checkpoint, bundled, tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(MODEL)
    own = config(checkpoint, architectures=["MineForCausalLM"], model_type="mine")
    (checkpoint / "config.json").write_text(json.dumps(own))
    words = [str(tmp_path / "mine.py"), "--checkpoint", str(checkpoint)]
    if bundled:
        words = [compiled(tmp_path / "b", words[0], words[2])]
    else:
        monkeypatch.setattr("bringup.compile.verify.command.build", lambda *_, **__: pytest.fail("compiled"))
    result = CliRunner().invoke(cli, ["verify", *words])
    assert result.exit_code == 1, result.output
    assert "error[BU703]" in result.output
    assert "MineForCausalLM" in result.output


@pytest.mark.parametrize(
    "changes",
    [
        {"model_type": "t5"},  # known, and no causal language model
        {"model_type": None},
        {"auto_map": {"AutoConfig": "theirs.Config"}, "model_type": "mine"},
        {"n_layer": 3},
    ],
)
def test_what_transformers_cannot_build_is_reported(saved, changes, monkeypatch):
    """Without a prompt whether to run the checkpoint's own code."""
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("a prompt"))
    from bringup.adapters.sources.open_checkpoint import open_checkpoint
    from bringup.compile.parity.reference import Reference

    with pytest.raises(BringupError, match="BU703"):
        Reference(open_checkpoint(str(saved)), config(saved, **changes), "float32")


def test_tensors_under_other_names_are_not_invented(checkpoint):
    from bringup.adapters.sources.open_checkpoint import open_checkpoint
    from bringup.compile.parity.reference import Reference

    file = checkpoint / "model.safetensors"
    save_file({f"mine.{name}": tensor for name, tensor in load_file(file).items()}, file, {"format": "pt"})
    with pytest.raises(BringupError, match=r"BU703.*finds no"):
        Reference(open_checkpoint(str(checkpoint)), config(checkpoint), "float32")
    shapes = config(checkpoint, n_embd=12)
    with pytest.raises(BringupError, match="BU703"):
        Reference(open_checkpoint(str(checkpoint)), shapes, "float32")


def test_a_reference_that_gives_no_numbers_is_reported(checkpoint):
    file = checkpoint / "model.safetensors"
    tensors = load_file(file)
    tensors["transformer.ln_f.weight"].fill_(3e38)
    save_file(tensors, file, {"format": "pt"})
    result = CliRunner().invoke(cli, ["verify", "gpt2", "--checkpoint", str(checkpoint)])
    assert result.exit_code == 1
    assert "error[BU708]: `transformer.ln_f` of `transformers " in result.output
