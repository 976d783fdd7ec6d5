"""Models with experts in some layers: the draft chooses by the layer's number, and asks if no key states the layers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from transformers import CONFIG_MAPPING

from bringup.adapters import open_checkpoint
from bringup.compile.draft.draft import draft, write_draft
from bringup.compile.draft.facts.hints import Hints
from bringup.compile.draft.modelling.stated import Meaning
from bringup.testing import assert_fits, assert_same_logits
from tests.draft.checkpoints import SIZES, assert_complete, drafted_with
from tests.draft.headers import checkpoint, shapes
from tests.models import parity

EXPERTS = {"num_hidden_layers": 4, "moe_intermediate_size": 32, "num_experts": 4, "num_experts_per_tok": 2}
SHARED = {"shared_expert_intermediate_size": 40}
# By name: the model type, the keys, and the test in the drafted config class.
CASES: dict[str, tuple[str, dict[str, Any], str]] = {
    "a list of layers": (
        "qwen3_moe", {**EXPERTS, "mlp_only_layers": [0, 2]}, "index not in mlp_only_layers and (num_experts > 0"
    ),
    "every second layer": (
        "qwen2_moe", {**EXPERTS, **SHARED, "decoder_sparse_step": 2}, "(index + 1) % decoder_sparse_step == 0"
    ),
    "all layers": ("qwen3_moe", EXPERTS, 'fields.only("mlp_only_layers", [])'),
}  # fmt: skip
QUESTION = "no known key of config.json states which layers have experts"


@pytest.mark.parametrize("name", CASES)
def test_a_key_states_the_layers(name: str, tmp_path: Path) -> None:
    found, model, source = drafted_with(*CASES[name][:2], tmp_path)
    assert_complete(found)
    assert CASES[name][2] in found.files[f"{found.name}_graph.py"]
    assert_fits(model, source)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_logits(name: str, tmp_path: Path) -> None:
    _, model, source = drafted_with(*CASES[name][:2], tmp_path)
    assert_same_logits(model, source)


def test_another_value_of_a_key_changes_the_layers(tmp_path: Path) -> None:
    """The drafted config reads the key: for other layers than the tensors have, the checkpoint does not fit."""
    _, model, source = drafted_with(*CASES["a list of layers"][:2], tmp_path)
    raw = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(raw | {"mlp_only_layers": [0]}))
    with pytest.raises(pytest.fail.Exception, match=r"layers\.2\.mlp"):
        assert_fits(model, source)


def test_a_key_that_the_tensors_contradict(tmp_path: Path) -> None:
    """The tensors decide, and the key is a question with transformers' test."""
    kind, keys, _ = CASES["a list of layers"]
    source = parity.save_checkpoint(CONFIG_MAPPING[kind](**SIZES | keys), tmp_path)
    raw = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(raw | {"mlp_only_layers": [0]}))
    found = draft(open_checkpoint(source, headers_only=True))
    lines = found.files["qwen3_moe_graph.py"].splitlines()
    at = next(index for index, line in enumerate(lines) if QUESTION in line)
    assert "transformers: layer_idx not in config.mlp_only_layers and" in lines[at + 1]
    assert lines[at + 2].strip() == "sparse = tuple(index in (1, 3) for index in range(layers))"
    assert any(each.text.startswith("`mlp_only_layers` is [0]: what") for each in found.questions)


def mixed(**config: Any) -> Any:
    """Headers of three layers, of which the last two have experts."""
    found = shapes()
    layer = {name: shape for name, shape in found.items() if ".0." in name}
    for index in (1, 2):
        for name, shape in layer.items():
            if ".mlp." not in name:
                found[name.replace(".0.", f".{index}.")] = shape
        mlp = f"model.layers.{index}.mlp."
        found[f"{mlp}gate.weight"] = (2, 16)
        for expert in range(2):
            found |= {f"{mlp}experts.{expert}.{x}_proj.weight": (8, 16) for x in ("gate", "up")}
            found[f"{mlp}experts.{expert}.down_proj.weight"] = (16, 8)
    sizes = {"num_hidden_layers": 3, "num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 8}
    return checkpoint(found, **sizes | config)


@pytest.mark.parametrize(
    ("test", "config", "written"),
    [
        ("layer_idx >= config.first", {"first": 1}, "index >= first"),
        ("layer_idx < config.first", {"first": 1}, "not (index < first)"),
        ("config.kinds[layer_idx] == 'e'", {"kinds": ["d", "e", "e"]}, "kinds.get(index) == 'e'"),
        ("config.flags[layer_idx] == 1", {"flags": [0, 1, 1]}, "flags.get(index) == 1"),
        ("layer_idx in config.fields", {"fields": [1, 2]}, "index in fields_"),
        ("layer_idx % config.every != 0", {"every": 3}, "index % every != 0"),
        ("layer_idx >= config.first", {"first": 2}, ""),  # not the layers of the tensors
        ("layer_idx >= config.first", {"first": None}, ""),
        ("layer_idx >= config.first", {"first": "1"}, ""),
        ("layer_idx >= config.first", {}, ""),
        ("layer_idx % config.every != 0", {"every": 0}, ""),
        ("config.kinds[layer_idx] == 'e'", {"kinds": ["d", 1, "e"]}, ""),
        ("config.kinds[layer_idx + 1] == 'e'", {"kinds": ["d", "e", "e"]}, ""),
        ("is_sparse(layer_idx)", {}, ""),
        ("layer_idx >= first", {"first": 1}, ""),
        ("", {}, ""),
    ],
)
def test_a_test_that_can_be_written(
    test: str, config: dict[str, Any], written: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Comparisons of the layer's number with keys are, if they give the tensors' layers; others are a question."""
    hints = Hints(meaning=Meaning(layer_test=test))
    monkeypatch.setattr("bringup.compile.draft.draft.hints_of", lambda *_: hints)
    found = draft(mixed(**config))
    lines = [line.strip() for line in found.files["newmodel_graph.py"].splitlines()]
    assert found.open == 0
    assert any(each.text.startswith(QUESTION) for each in found.questions) is not bool(written)
    assert (written or "sparse = tuple(index in (1, 2) for index in range(layers))") in lines


def test_experts_and_an_mlp_in_one_layer_are_open() -> None:
    """In the same layer: the draft has one or the other."""
    source = mixed()
    more = {name.replace(".0.", ".1."): info for name, info in source.headers.items() if ".0.mlp." in name}
    names = {name: tuple(info.shape) for name, info in (source.headers | more).items()}
    found = draft(checkpoint(names, **source.config))
    assert found.open > 0


def test_layers_after_the_last(tmp_path: Path) -> None:
    """A layer that predicts a further token, as GLM-4.5 has: dropped with a question, and no reason for another."""
    _, _, source = drafted_with(*CASES["a list of layers"][:2], tmp_path)
    tensors = load_file(source / "model.safetensors")
    later = {name.replace(".3.", ".4."): array for name, array in tensors.items() if ".layers.3." in name}
    later["model.layers.4.eh_proj.weight"] = np.zeros((48, 96), np.float32)
    save_file(tensors | later, source / "model.safetensors")
    found = draft(open_checkpoint(source, headers_only=True))
    write_draft(found, tmp_path / "later")
    assert found.open == 0
    texts = [each.text for each in found.questions if not each.text.startswith("GGUF")]
    assert [text.partition(" of a layer after")[0] for text in texts] == [f"`layers.4.*`: {len(later)} tensors"]
    assert_fits(tmp_path / "later" / "qwen3_moe.py", source)
