"""Drafts of layers that the public parts lack: one key head, parallel layers, q, k and v by head, shared experts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import (
    BloomConfig,
    FalconConfig,
    Gemma3TextConfig,
    GPTNeoXConfig,
    Lfm2Config,
    PreTrainedConfig,
    Qwen2MoeConfig,
)

from bringup.adapters import open_checkpoint
from bringup.compile.draft.draft import Draft, draft, write_draft
from bringup.diagnostics import BringupError
from bringup.testing import assert_fits, assert_same_logits
from tests.draft.checkpoints import SIZES
from tests.draft.headers import checkpoint, shapes
from tests.models import parity

FALCON: dict[str, Any] = {
    "vocab_size": 131, "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 6, "alibi": False,
    "bos_token_id": 0, "eos_token_id": 2,
}  # fmt: skip
NEW = {"new_decoder_architecture": True, "num_kv_heads": 3}
ONE_NORM = {"multi_query", "new_decoder_architecture", "num_ln_in_parallel_attn"}
SPARSE = {"decoder_sparse_step", "max_window_layers", "mlp_only_layers"}
EXPERTS = {"moe_intermediate_size": 32, "num_experts": 4, "num_experts_per_tok": 2}
# By name: the config, and the keys whose meaning the draft asks for; here they have no further effect.
CASES: dict[str, tuple[PreTrainedConfig, set[str]]] = {
    "one key head": (FalconConfig(**FALCON, multi_query=True, parallel_attn=True), set()),
    "in sequence, by head": (FalconConfig(**FALCON, multi_query=False, parallel_attn=False, bias=True), set()),
    "two norms": (FalconConfig(**FALCON, **NEW), ONE_NORM),
    "one norm": (FalconConfig(**FALCON, **NEW, num_ln_in_parallel_attn=1), ONE_NORM),
    "by head and two norms": (
        GPTNeoXConfig(**SIZES | {"num_key_value_heads": 6}, use_parallel_residual=True), {"num_key_value_heads"},
    ),
    "a shared expert with a gate": (
        Qwen2MoeConfig(**SIZES, **EXPERTS, shared_expert_intermediate_size=40), SPARSE,
    ),
}  # fmt: skip
QUICK = ("one key head",)


def drafted(name: str, folder: Path) -> tuple[Draft, Path, Path]:
    """The draft, its model file, and the checkpoint. The keys of the case are read."""
    config, keys = CASES[name]
    source = parity.save_checkpoint(config, folder / "checkpoint")
    found = draft(open_checkpoint(source, headers_only=True))
    unread = {question.text.split("`")[1] for question in found.questions if "rejects it until" in question.text}
    assert unread <= keys
    write_draft(found, folder / "draft")
    graph = folder / "draft" / f"{found.name}_graph.py"
    text = graph.read_text("utf-8")
    graph.write_text(
        text.replace("        return cls(\n", f"        fields.read |= {keys or 'set()'}\n        return cls(\n")
    )
    return found, folder / "draft" / f"{found.name}.py", source


@pytest.mark.parametrize("name", CASES)
def test_nothing_is_left_open(name: str, tmp_path: Path) -> None:
    found, model, source = drafted(name, tmp_path)
    assert found.open == 0
    assert not any("several readings" in question.text for question in found.questions)  # transformers' file decides
    assert_fits(model, source)


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in CASES]
)
def test_logits(name: str, tmp_path: Path) -> None:
    _, model, source = drafted(name, tmp_path)
    assert_same_logits(model, source)


def test_without_hints_the_order_is_a_question(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each head's q, k and v, or all of q first: both are proved, so both are in the draft."""
    from bringup.compile.draft.facts.hints import Hints

    monkeypatch.setattr("bringup.compile.draft.draft.hints_of", lambda *_: Hints())
    source = parity.save_checkpoint(CASES["in sequence, by head"][0], tmp_path / "checkpoint")
    found = draft(open_checkpoint(source, headers_only=True))
    (choices,) = [each.choices for each in found.questions if "weight` [144, 48]: several readings" in each.text]
    assert choices[0] == "q, then k, then v"
    assert choices[1].startswith("each head's q, k and v: S(")


def test_a_width_that_no_key_states(tmp_path: Path) -> None:
    """BLOOM's: four times the hidden size, as a matrix of the checkpoint shows."""
    config = BloomConfig(vocab_size=131, hidden_size=40, n_layer=2, n_head=5)
    found = draft(open_checkpoint(parity.save_checkpoint(config, tmp_path), headers_only=True))
    texts = [question.text for question in found.questions]
    assert not any("intermediate_size" in text for text in texts)
    assert not any("several readings" in text for text in texts)
    assert found.open == 0
    assert '"model.embed_norm.{p:weight|bias}"] = S(' in found.files["bloom_adapter.py"]


def test_a_rope_for_each_kind_of_layer(tmp_path: Path) -> None:
    source = parity.save_checkpoint(Gemma3TextConfig(**SIZES, head_dim=8, sliding_window=32), tmp_path)
    found = draft(open_checkpoint(source, headers_only=True))
    assert found.open == 0
    assert not any("rope" in question.text.partition("GGUF")[0] for question in found.questions)
    assert "local_theta=10000.0" in found.files["gemma3_text_graph.py"]


def test_layers_that_lack_a_tensor() -> None:
    """The question has the layers that have it, and so the place of the change."""
    found = shapes()
    found |= {name.replace("layers.0.", "layers.1."): shape for name, shape in found.items() if "q_proj" not in name}
    texts = [each.text for each in draft(checkpoint(found, num_hidden_layers=2)).questions]
    (text,) = [text for text in texts if "q_proj.weight` [16, 16]: no rule holds" in text]
    assert text.endswith("; layers 0 alone have it: create its module in these")
    assert not any("alone have it" in text for text in texts if "k_proj" in text)


def test_the_name_that_transformers_has_for_a_size() -> None:
    """XGLM's `attention_heads` are those of its decoder; BART's `encoder_layers` are not."""
    found = {name.replace("mlp.", "").replace("up_proj", "fc1"): shape for name, shape in shapes().items()}
    own = {"num_attention_heads": None, "num_hidden_layers": None, "hidden_size": None, "d_model": 16, "num_layers": 1}
    xglm = checkpoint(found, model_type="xglm", architectures=["XGLMForCausalLM"], attention_heads=2, **own)
    assert 'fields.size("attention_heads")' in draft(xglm).files["xglm_graph.py"]
    own = {"num_hidden_layers": None, "d_model": 16, "encoder_layers": 1}
    bart = checkpoint(found, model_type="bart", architectures=["BartForCausalLM"], **own)
    with pytest.raises(BringupError, match="none of `num_hidden_layers`, `n_layer`"):
        draft(bart)


@pytest.mark.parametrize(("types", "where"), [(["conv", "full_attention"], "layers 0"), (["conv"] * 2, "all layers")])
def test_recurrent_layers_are_a_question(types: list[str], where: str, tmp_path: Path) -> None:
    source = parity.save_checkpoint(Lfm2Config(**SIZES, layer_types=types, block_multiple_of=2), tmp_path)
    found = draft(open_checkpoint(source, headers_only=True))
    (question,) = [each.text for each in found.questions if "`RecurrentLayer`" in each.text]
    assert question.startswith(f"{where} have a convolution over tokens, `layers.{{L}}.conv.conv.weight` [48, 1, 3]:")
