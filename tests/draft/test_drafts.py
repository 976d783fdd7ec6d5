"""Drafts of families that the registry does not have: those that public parts cover fit and compute the same."""

from __future__ import annotations

import json
import sys
from importlib.metadata import EntryPoint
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from safetensors.numpy import load_file, save_file

from bringup.adapters import open_checkpoint
from bringup.compile.draft.draft import Draft, draft, write_draft
from bringup.compile.draft.facts import hints
from bringup.compile.draft.facts.hints import Hints
from bringup.compile.job import open_job
from bringup.diagnostics import BringupError
from bringup.graphs import registry
from bringup.render.draft import draft_text
from bringup.testing import assert_fits, assert_same_logits
from tests.draft.checkpoints import save
from tests.draft.headers import checkpoint, shapes

WHOLE = ("starcoder2", "stablelm", "olmo", "helium", "seed_oss", "olmoe")  # nothing is left to write by hand


def drafted(source: Path, folder: Path) -> tuple[Draft, Path]:
    found = draft(open_checkpoint(source, headers_only=True))
    write_draft(found, folder)
    return found, folder / f"{found.name}.py"


@pytest.mark.parametrize("kind", WHOLE)
def test_a_draft_that_fits(kind: str, tmp_path: Path) -> None:
    source = save(kind, tmp_path / kind)
    found, model = drafted(source, tmp_path / "draft")
    assert found.open == 0
    assert_fits(model, source)
    for name, text in found.files.items():
        compile(text, name, "exec")
        assert max(len(line) for line in text.splitlines() if not line.lstrip().startswith("#")) <= 140, name


@pytest.mark.slow
@pytest.mark.parametrize("kind", WHOLE)
def test_its_logits(kind: str, tmp_path: Path) -> None:
    source = save(kind, tmp_path / kind)
    assert_same_logits(drafted(source, tmp_path / "draft")[1], source)


def test_what_is_left_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cohere without hints: one norm a layer, and a word that multiplies logits, which the check rejects until it is
    read."""
    monkeypatch.setattr("bringup.compile.draft.draft.hints_of", lambda *_: Hints())
    source = save("cohere", tmp_path / "cohere")
    found, model = drafted(source, tmp_path / "draft")
    texts = [question.text for question in found.questions]
    assert any(text.startswith("`logit_scale` is 0.0625") for text in texts)
    assert any("one norm" in text for text in texts)
    for question in found.questions:
        assert any(f"# ? {question.number}. {question.text}" in text for text in found.files.values())
    with pytest.raises(pytest.fail.Exception, match=r"\[BU120\].*logit_scale"):
        assert_fits(model, source)


def test_names_of_norms_and_positions(tmp_path: Path) -> None:
    """OPT: fairseq's names, learned positions, no rope, and keys of training alone."""
    found, _ = drafted(save("opt", tmp_path / "opt"), tmp_path / "draft")
    texts = [question.text for question in found.questions]
    assert not any("no rope" in text or "embed_positions" in text for text in texts)
    assert "positions are learned" in found.files["opt_graph.py"]
    assert "self.model.positions(step.positions + 2)" in found.files["opt_graph.py"]
    assert not any("rope rotates" in text or "its name is not known" in text for text in texts)
    assert not any(key in text for text in texts for key in ("`layerdrop`", "`init_std`"))
    rules = found.files["opt_adapter.py"]
    assert '"model.positions.weight"] = S("embed_positions.weight", "position m")' in rules
    assert 'input_layernorm.{p:weight|bias}"] = S("layers.{L}.self_attn_layer_norm.{p}")' in rules
    assert 'post_attention_layernorm.{p:weight|bias}"] = S("layers.{L}.final_layer_norm.{p}")' in rules


def test_an_unknown_norm_is_a_norm(tmp_path: Path) -> None:
    """Of the parts with its shape, only norms are choices, and its bias follows it."""
    source = save("starcoder2", tmp_path / "starcoder2")
    tensors = load_file(source / "model.safetensors")
    tensors = {name.replace("input_layernorm", "odd_norm"): array for name, array in tensors.items()}
    save_file(tensors, source / "model.safetensors")
    found, model = drafted(source, tmp_path / "draft")
    assert_fits(model, source)
    (choices,) = [question.choices for question in found.questions if "its name is not known" in question.text]
    assert choices == ("norm_1", "norm_3", "norm_4")


def test_a_bias_of_the_head(tmp_path: Path) -> None:
    """Phi's."""
    source = save("helium", tmp_path / "helium")
    tensors = load_file(source / "model.safetensors") | {"lm_head.bias": np.zeros(131, np.float32)}
    save_file(tensors, source / "model.safetensors")
    found, model = drafted(source, tmp_path / "draft")
    assert found.open == 0
    assert_fits(model, source)


def test_a_width_that_is_null(tmp_path: Path) -> None:
    """GPT-J and GPT-Neo: four times the hidden size."""
    source = save("helium", tmp_path / "helium")
    raw = json.loads((source / "config.json").read_text())
    tensors = load_file(source / "model.safetensors")
    wide = {name: np.zeros((192, 48), np.float32) for name in tensors if "gate_proj" in name or "up_proj" in name}
    wide |= {name: np.zeros((48, 192), np.float32) for name in tensors if "down_proj" in name}
    save_file(tensors | wide, source / "model.safetensors")
    (source / "config.json").write_text(json.dumps(raw | {"intermediate_size": None}))
    found, model = drafted(source, tmp_path / "draft")
    assert not any("intermediate_size" in question.text for question in found.questions)  # the tensors are as wide
    assert_fits(model, source)


def fused(source: Path, folder: Path, *, transposed: bool = False, up_first: bool = False) -> Path:
    """A checkpoint with q, k and v in one tensor, and gate and up in another, under the names that vLLM gives them."""
    tensors, folder = load_file(source / "model.safetensors"), folder
    folder.mkdir()
    for layer in range(2):
        at = f"model.layers.{layer}."
        qkv = [tensors.pop(f"{at}self_attn.{x}_proj.weight") for x in "qkv"]
        both = [tensors.pop(f"{at}mlp.{x}_proj.weight") for x in ("up", "gate")[:: 1 if up_first else -1]]
        tensors[f"{at}self_attn.qkv_proj.weight"] = np.concatenate(qkv)
        whole = np.concatenate(both)
        tensors[f"{at}mlp.gate_up_proj.weight"] = np.ascontiguousarray(whole.T if transposed else whole)
    save_file(tensors, folder / "model.safetensors")
    words: dict[str, Any] = json.loads((source / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(words))
    return folder


def test_other_readings_are_questions(tmp_path: Path) -> None:
    """No shape shows whether the gate is first, or how rows of q, k and v alternate: each is in the file and proved."""
    source = fused(save("helium", tmp_path / "helium"), tmp_path / "fused")
    found, model = drafted(source, tmp_path / "draft")
    job = open_job(model, source)
    assert_fits(model, source)
    choices_of = {question.text: question.choices for question in found.questions}
    gate = next(choices for text, choices in choices_of.items() if "gate_up_proj" in text)
    assert gate[0] == "the gate, then up"
    assert [choice.partition(":")[0] for choice in gate[1:3]] == [
        "up, then the gate", "a row of the gate, a row of up, and so on"
    ]  # fmt: skip
    assert any("qkv_proj" in text for text in choices_of)
    printed = draft_text(found, tmp_path, "helium").splitlines()
    assert "       or: up, then the gate (rules in the file)" in printed
    assert max(len(line) for line in printed if line.startswith("  ")) < 200
    assert len(job.plan.entries) == 21


def test_vllm_s_table_is_a_hint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its source is read, and nothing of it imported: the words of a merged tensor's parts are roles."""
    models = tmp_path / "site" / "vllm" / "model_executor" / "models"
    models.mkdir(parents=True)
    (tmp_path / "site" / "vllm" / "__init__.py").write_text("raise RuntimeError('imported')")
    (models / "registry.py").write_text('_MODELS = {"NewForCausalLM": ("new", "NewForCausalLM")}\n')
    (models / "new.py").write_text(
        "class NewForCausalLM:\n    packed_modules_mapping = {\n"
        '        "qkv_proj": ["alpha", "beta", "gamma"],\n        "gate_up_proj": ["one", "two"],\n    }\n'
    )
    monkeypatch.syspath_prepend(tmp_path / "site")
    source = save("seed_oss", tmp_path / "seed_oss")
    tensors = load_file(source / "model.safetensors")
    words = {"q_proj": "alpha", "k_proj": "beta", "v_proj": "gamma", "gate_proj": "one", "up_proj": "two"}
    for old, new in words.items():
        tensors = {name.replace(old, new): array for name, array in tensors.items()}
    save_file(tensors, source / "model.safetensors")
    raw = json.loads((source / "config.json").read_text()) | {"architectures": ["NewForCausalLM"]}
    (source / "config.json").write_text(json.dumps(raw))
    found, model = drafted(source, tmp_path / "draft")
    assert any("vLLM" in hint for hint in found.hints)
    assert "vllm" not in sys.modules
    entries = open_job(model, source).plan.entries
    assert [entries[f"model.layers.1.self_attn.{x}_proj.weight"].sources[0].name for x in "qkv"] == [
        f"model.layers.1.self_attn.{word}.weight" for word in ("alpha", "beta", "gamma")
    ]
    assert_fits(model, source)


def test_words_that_nobody_knows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Roles by shape alone: the draft fits, and asks which of the same shape is which."""
    monkeypatch.setattr("bringup.compile.draft.draft.hints_of", lambda *_: Hints())
    source = save("helium", tmp_path / "helium")
    tensors = load_file(source / "model.safetensors")
    tensors = {name.replace("k_proj", "foo").replace("v_proj", "bar"): array for name, array in tensors.items()}
    save_file(tensors, source / "model.safetensors")
    found, model = drafted(source, tmp_path / "draft")
    assert_fits(model, source)
    choices = [question.choices for question in found.questions if "its name is not known" in question.text]
    assert ("k", "v") in choices
    assert any(text.startswith("what absent keys") for text in (question.text for question in found.questions))
    assert any("how rope rotates" in question.text for question in found.questions)


def test_a_draft_in_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files are modules of a package as they are, whose entry point names the package."""
    source = save("helium", tmp_path / "helium")
    drafted(source, tmp_path / "site" / "models_of_mine")
    (tmp_path / "site" / "models_of_mine" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path / "site")
    point = EntryPoint("helium", "models_of_mine", "bringup.models")
    monkeypatch.setattr(registry.plugins, "points", lambda group, name="": [point] if group == point.group else [])
    assert_fits(checkpoint=source)
    assert registry.by_architecture(["HeliumForCausalLM"]).name == "helium"


def test_no_file_is_replaced(tmp_path: Path) -> None:
    source = save("helium", tmp_path / "helium")
    found, _ = drafted(source, tmp_path / "draft")
    with pytest.raises(BringupError, match="BU011"):
        write_draft(found, tmp_path / "draft")


def test_a_package_that_may_answer_questions_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers if it is not installed, or a later one if it does not have the model type."""
    known, unknown = (checkpoint(shapes(), model_type=kind) for kind in ("arcee", "newmodel"))
    assert "note:" not in draft_text(draft(known), Path("out"), "source")
    text = draft_text(draft(unknown), Path("out"), "source")
    assert f"note: transformers {transformers.__version__} does not have `newmodel`: if a later version has" in text
    monkeypatch.setattr(hints, "find_spec", lambda name: None if name == "transformers" else find_spec(name))
    text = draft_text(draft(known), Path("out"), "source")
    assert "note: transformers is not installed: if it has `arcee`, its code answers most questions; " in text
    assert "pip install 'bringup[verify]'" in text
