"""`--against FILE`: activations saved here or elsewhere as the reference, and files that do not serve as one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from transformers import AutoModelForCausalLM

from bringup.compile.parity.activations import fitted, load_activations, save_activations
from bringup.compile.parity.parity import Parity
from bringup.compile.parity.reference import record
from bringup.compile.runtime.session import Session
from bringup.compile.verify.command import parity_of, verify
from bringup.diagnostics import BringupError
from tests.compile.planted import CONFIG, compiled, job, saved

TOKENS = np.random.default_rng(7).integers(0, CONFIG.vocab_size, 30).tolist()
FIRST = "model.layers.0.mlp"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    return saved(tmp_path_factory.mktemp("against") / "model")


@pytest.fixture(scope="module")
def activations(checkpoint: Path) -> dict[str, np.ndarray]:
    """As docs/verify.md has a user record them; logits as their own tensor."""
    model = AutoModelForCausalLM.from_pretrained(checkpoint, attn_implementation="eager").eval()
    with torch.no_grad():
        found = record(model, lambda: model(torch.tensor([TOKENS])))
    return found | {"logits": found["lm_head"]}


def test_a_recorded_model_is_a_reference(checkpoint: Path, activations: dict[str, Any], tmp_path: Path) -> None:
    file = save_activations(tmp_path / "a.safetensors", activations, TOKENS, reference="mine 1.0", dtype="float32")
    found = verify("llama", str(checkpoint), against=str(file))
    assert found.ok, found.findings
    assert (found.reference, found.tokens) == ("mine 1.0", len(TOKENS))
    assert {"model.embed_tokens", FIRST, f"{FIRST}.up_proj", "lm_head"} <= found.layers.keys()
    assert {difference.phase for difference in found.differences} == {"prefill_32", "decode"}
    assert [path.name for path in tmp_path.iterdir()] == ["a.safetensors"]


@pytest.fixture(scope="module")
def session(checkpoint: Path, tmp_path_factory) -> Session:
    return compiled(job(checkpoint), tmp_path_factory.mktemp("against") / "b", target="torch")


@pytest.fixture(scope="module")
def against(checkpoint: Path, session: Session) -> Callable[[Path], Parity]:
    """Verification of one session against a file."""
    opened = job(checkpoint)

    def run(file: Path) -> Parity:
        return parity_of(session, opened, saved=fitted(load_activations(file), opened, str(file)), source=str(file))

    return run


@pytest.mark.parametrize("keep", [["logits"], ["lm_head"], [FIRST]])
@pytest.mark.parametrize("form", ["safetensors", pytest.param("npz", marks=pytest.mark.slow)])
def test_a_part_of_it_is_enough(against, activations, keep: list[str], form: str, tmp_path: Path) -> None:
    some = {name: activations[name] for name in keep}
    file = tmp_path / f"a.{form}"
    if form == "npz":
        np.savez(file, tokens=np.array([TOKENS]), **some)
    else:
        save_activations(file, some, TOKENS)
    assert against(file).ok
    some[keep[0]] = some[keep[0]] + 0.5 * np.abs(some[keep[0]]).max()
    save_activations(file.with_suffix(".safetensors"), some, TOKENS)
    found = against(file.with_suffix(".safetensors"))
    assert not found.ok
    code, parameter = found.findings[0].code, found.findings[0].parameter
    assert (code, parameter) == {"logits": ("BU701", ""), "lm_head": ("BU701", "lm_head"), FIRST: ("BU701", FIRST)}[
        keep[0]
    ]


def test_a_module_that_inherits_is_distinguished_from_one_that_departs(
    against, checkpoint: Path, tmp_path: Path
) -> None:
    """With inputs in the file, the module that is wrong by itself is named: the reference has another gate."""
    layer = "model.layers.1.mlp"
    model = AutoModelForCausalLM.from_pretrained(checkpoint, attn_implementation="eager").eval()
    with torch.no_grad():
        model.get_submodule(layer).gate_proj.weight *= 1.5
        other = record(model, lambda: model(torch.tensor([TOKENS])))
    found = against(save_activations(tmp_path / "a.safetensors", other, TOKENS))
    assert found.findings[0].parameter == f"{layer}.gate_proj"
    down = next(module for module in found.modules if module.name == f"{layer}.down_proj")
    assert down.output > found.tolerance
    assert down.alone is not None
    assert down.alone <= found.tolerance


def test_what_verify_saves(checkpoint: Path, session: Session, tmp_path: Path) -> None:
    opened = job(checkpoint)
    assert parity_of(session, opened, save=tmp_path / "all").ok
    assert sorted(path.name for path in (tmp_path / "all").iterdir()) == ["ours.safetensors", "reference.safetensors"]
    parity_of(session, opened, save=tmp_path / "one.safetensors")
    theirs, ours = (load_file(tmp_path / "all" / f"{name}.safetensors") for name in ("reference", "ours"))
    assert theirs.keys() == load_file(tmp_path / "one.safetensors").keys()
    assert np.abs(theirs[FIRST] - ours[FIRST]).max() <= 2e-4 * np.abs(theirs[FIRST]).max()
    with safe_open(tmp_path / "one.safetensors", "numpy") as file:
        said = file.metadata()
    assert said["reference"].startswith("transformers 5")
    assert {"model", "dtype", "bringup", "tokens"} <= said.keys()
    assert theirs["logits"].shape == (len(json.loads(said["tokens"])), CONFIG.vocab_size)
    saved = fitted(load_activations(tmp_path / "one.safetensors"), opened, "one")
    assert parity_of(session, opened, saved=saved).ok


# --- files that do not serve


def nothing(file: Path, arrays: dict[str, np.ndarray]) -> None:
    del arrays
    file.unlink(missing_ok=True)


def no_tokens(file: Path, arrays: dict[str, np.ndarray]) -> None:
    save_file(arrays, file)


def changed(**more: Any) -> Callable[[Path, dict[str, np.ndarray]], None]:
    def write(file: Path, arrays: dict[str, np.ndarray]) -> None:
        save_file(arrays | {"tokens": np.array(TOKENS)} | more, file)

    return write


def deep_tokens(file: Path, arrays: dict[str, np.ndarray]) -> None:
    save_file(arrays, file, {"tokens": "[" * 100_000})


def renamed(file: Path, arrays: dict[str, np.ndarray]) -> None:
    save_file({"model.layer.0.mlp": arrays[FIRST], "tokens": np.array(TOKENS)}, file)


def of_another_dtype(file: Path, arrays: dict[str, np.ndarray]) -> None:
    save_activations(file, arrays, TOKENS, dtype="bfloat16")


def cut_off(file: Path, arrays: dict[str, np.ndarray]) -> None:
    save_activations(file, arrays, TOKENS)
    file.write_bytes(file.read_bytes()[:-5])


def bad_npz(file: Path, arrays: dict[str, np.ndarray]) -> None:
    np.savez(file, **arrays)
    file.write_bytes(file.read_bytes()[:-50])


def pickled(file: Path, arrays: dict[str, np.ndarray]) -> None:
    np.savez(file, tokens=np.array([{}], dtype=object), **arrays)


NAN = np.full((30, CONFIG.hidden_size), np.nan, np.float32)
BAD: dict[str, tuple[str, Callable[[Path, dict[str, np.ndarray]], None], str, str]] = {
    "absent": ("a.safetensors", nothing, "BU034", "no such file"),
    "no-tokens": ("a.safetensors", no_tokens, "BU706", "state the tokens"),
    "float-tokens": ("a.safetensors", changed(tokens=np.ones(30, np.float32)), "BU706", "one row of token ids"),
    "two-rows": ("a.safetensors", changed(tokens=np.ones((2, 15), np.int64)), "BU706", "one row of token ids"),
    "deep-tokens": ("a.safetensors", deep_tokens, "BU706", "one row of token ids"),
    "strange-token": ("a.safetensors", changed(tokens=np.full(30, 99)), "BU015", "token 99"),
    "too-few-tokens": ("a.safetensors", changed(tokens=np.arange(29)), "BU707", "for 29 tokens"),
    "shape": ("a.safetensors", changed(**{FIRST: np.ones((30, 9), np.float32)}), "BU707", "shape [30, 9]"),
    "integers": ("a.safetensors", changed(**{FIRST: np.ones((30, 32), np.int32)}), "BU707", "is int32"),
    "nan": ("a.safetensors", changed(**{FIRST: NAN}), "BU708", "has NaN at token 0"),
    "infinity": ("a.safetensors", changed(**{FIRST: np.full_like(NAN, np.inf)}), "BU708", "has infinity"),
    "words": ("a.safetensors", changed(logits=np.ones((30, 66), np.float32)), "BU707", "66 columns, the vocabulary 67"),
    "renamed": ("a.safetensors", renamed, "BU707", "has no module"),
    "dtype": ("a.safetensors", of_another_dtype, "BU707", "computed in bfloat16"),
    "cut-off": ("a.safetensors", cut_off, "BU208", "5 are missing"),
    "bad-npz": ("a.npz", bad_npz, "BU706", "cannot be read as .npz"),
    "pickled": ("a.npz", pickled, "BU706", "cannot be read as .npz"),
}


@pytest.mark.parametrize("name", BAD)
def test_one_error(
    name: str, against: Callable[[Path], Parity], activations: dict[str, np.ndarray], tmp_path: Path
) -> None:
    at, write, code, said = BAD[name]
    write(tmp_path / at, {FIRST: activations[FIRST], "logits": activations["logits"]})
    with pytest.raises(BringupError) as caught:
        against(tmp_path / at)
    (finding,) = caught.value.findings
    assert (finding.code, said in finding.message) == (code, True), finding.message
    assert finding.help
    if name == "renamed":
        assert finding.help == "did you mean `model.layers.0.mlp`?"


def test_a_word_that_is_nearly_transformers() -> None:
    with pytest.raises(BringupError, match="BU034") as caught:
        load_activations("transformer")
    assert "transformers" in caught.value.findings[0].help
