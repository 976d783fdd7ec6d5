"""Keys that choose statements of transformers' code, or shapes: the draft has those of the config's values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import CONFIG_MAPPING

from bringup.adapters import open_checkpoint
from bringup.compile.draft.draft import Draft, draft
from bringup.compile.draft.modelling.meaning import meaning_of
from bringup.compile.draft.modelling.parts import parts_of
from bringup.compile.draft.modelling.settled import settled_keys
from bringup.testing import assert_fits, assert_same_logits
from tests.draft.checkpoints import drafted
from tests.models import parity

GPT: dict[str, Any] = {
    "vocab_size": 131, "n_embd": 48, "n_layer": 2, "n_head": 6, "n_positions": 256, "bos_token_id": 0,
    "eos_token_id": 2,
}  # fmt: skip
OPT: dict[str, Any] = {
    "vocab_size": 131, "hidden_size": 48, "ffn_dim": 80, "num_hidden_layers": 2, "num_attention_heads": 6,
    "max_position_embeddings": 256, "word_embed_proj_dim": 48, "pad_token_id": 1,
}  # fmt: skip
LLAMA: dict[str, Any] = {
    "vocab_size": 131, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 6,
    "num_key_value_heads": 3, "max_position_embeddings": 256, "pad_token_id": 1,
}  # fmt: skip
ROUTED: dict[str, Any] = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "head_dim": 8}
# By name: the model type, its keys, and words of the drafted graph.
CASES: dict[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    "learned positions from 2, scaled queries": ("opt", OPT, ('fields.only("enable_bias", True)', "positions + 2)")),
    "inputs first, keys of GPT-2": ("gpt2", GPT, ('"n_positions"', 'fields.only("scale_attn_weights", True)')),
    "pairs of a part of the channels": ("gptj", GPT | {"rotary_dim": 4}, ("ParallelLayer(", "partial=fields.size(")),
    "one key head, attributes that no code reads": (
        "gpt_bigcode", GPT, ('fields.only("attention_softmax_in_fp32", True)', 'fields.only("multi_query", True)'),
    ),
    "a width of experts alone": ("solar_open", LLAMA | ROUTED, ("SharedSigmoidMLP(", 'size("moe_intermediate_size")')),
    "a class of another model type": ("internlm3", LLAMA, ("norm = RMSNorm",)),
}  # fmt: skip
FAST = ("pairs of a part of the channels",)


def drafted_case(name: str, folder: Path) -> tuple[Draft, Path, Path]:
    kind, keys, _ = CASES[name]
    source = parity.save_checkpoint(CONFIG_MAPPING[kind](**keys), folder / "checkpoint")
    return *drafted(source, folder / "draft"), source


@pytest.mark.parametrize("name", CASES)
def test_no_question_remains(name: str, tmp_path: Path) -> None:
    found, model, source = drafted_case(name, tmp_path)
    texts = [each.text for each in found.questions if not each.text.startswith("GGUF")]
    assert [text for text in texts if not text.endswith("write what they change")] == []
    assert found.open == 0
    for word in CASES[name][2]:
        assert word in found.files[f"{found.name}_graph.py"]
    assert_fits(model, source)


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in FAST else pytest.mark.slow) for n in CASES])
def test_logits(name: str, tmp_path: Path) -> None:
    _, model, source = drafted_case(name, tmp_path)
    assert_same_logits(model, source)


def test_another_value_is_rejected(tmp_path: Path) -> None:
    _, model, source = drafted_case("inputs first, keys of GPT-2", tmp_path)
    raw = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(raw | {"scale_attn_weights": False}))
    with pytest.raises(pytest.fail.Exception, match="scale_attn_weights"):
        assert_fits(model, source)


def test_scores_divided_by_the_layer_s_number_are_a_question(tmp_path: Path) -> None:
    """`__init__` changes the scale by a statement with an operator."""
    keys: dict[str, Any] = {**GPT, "scale_attn_by_inverse_layer_idx": True}
    source = parity.save_checkpoint(CONFIG_MAPPING["gpt2"](**keys), tmp_path / "checkpoint")
    found = draft(open_checkpoint(source, headers_only=True))
    assert any("self.scaling / float(self.layer_idx + 1)" in each.text for each in found.questions)


CODE = """
class NewAttention:
    def __init__(self, config, is_cross=False, layer_idx=None):
        self.scaling = self.head_dim**-0.5
        self.is_cross = is_cross
        self.extra = nn.Linear(config.wide, config.wide, bias=config.with_bias) if config.extra else None
        self.factor = config.factor
        INIT

    def forward(self, hidden_states):
        if self.is_cross:
            hidden_states = hidden_states * 2
        if self.extra is not None:
            hidden_states = self.extra(hidden_states) * 3
        unused = None
        if unused is not None:
            hidden_states = hidden_states * 5
        STATEMENT
        return hidden_states


class NewForCausalLM:
    def __init__(self, config):
        self.attention = NewAttention(CALL)

    def forward(self, input_ids):
        return self.attention(input_ids)
"""
KEYS = {"wide": 8, "with_bias": True, "extra": False, "factor": 2.0}


def read(
    folder: Path, statement: str, call: str = "config, layer_idx=0", init: str = "pass", **keys: Any
) -> tuple[set[str], list[str]]:
    """The settled keys, and the statements that are a question."""
    text = CODE.replace("STATEMENT", statement).replace("CALL", call).replace("INIT", init)
    (folder / "modeling_new.py").write_text(text)
    parts = parts_of(folder / "modeling_new.py", "NewForCausalLM", KEYS | keys)
    questions = meaning_of(parts).unexplained
    return set(settled_keys(parts, KEYS | keys)), [text for texts in questions.values() for text in texts]


# A statement, the arguments of a call, keys of the config; then the keys that are used, and words of the questions.
DECIDED: list[tuple[str, str, dict[str, Any], set[str], list[str]]] = [
    ("pass", "config, layer_idx=0", {}, set(), []),
    ("pass", "config, layer_idx=0", {"extra": True}, set(), ["3"]),
    ("pass", "config, is_cross=True", {}, set(), ["if", "2"]),
    ("pass", "config, True", {}, set(), ["if", "2"]),
    ("pass", "config, **more", {}, set(), ["if", "2"]),
    ("unused = hidden_states\n        if unused is not None:\n            hidden_states = unused * 7", "config", {},
     set(), ["7"]),
    ("hidden_states = hidden_states * self.factor", "config", {}, {"factor"}, ["config.factor"]),
    ("if self.factor > 1:\n            hidden_states = hidden_states * 7", "config", {}, set(), ["7"]),
    ("if self.factor < 1:\n            hidden_states = hidden_states * 7", "config", {}, set(), []),
    ("hidden_states = hidden_states * getattr(config, 'extra', 1)", "config", {}, {"extra"}, ["getattr"]),
    ("if self.factor > 1 and self.other.factor:\n            pass", "config", {}, {"factor"}, ["other"]),
]  # fmt: skip


@pytest.mark.parametrize(("statement", "call", "keys", "used", "questions"), DECIDED)
def test_what_the_config_decides(
    statement: str, call: str, keys: dict[str, Any], used: set[str], questions: list[str], tmp_path: Path
) -> None:
    """`used`: the keys that are not settled."""
    settled, texts = read(tmp_path, statement, call, **keys)
    assert KEYS.keys() - settled == used
    assert len(texts) == len(questions)
    for word in questions:
        assert any(word in text for text in texts)


@pytest.mark.parametrize(
    ("init", "is_settled"),
    [
        ("pass", True),
        ("self.factor = config.factor", True),
        ("self.factor = self.factor * 2", False),
        ("self.factor *= 2", False),
        ("self.factor: float = config.factor", True),
        ("self.factor: float = config.factor + 1", False),
        ("self.unread = config.factor * 2", True),
        ("self.is_causal = config.factor * 2", False),  # transformers' attention reads it of any module
        ("self.unread = config.factor * 2\n        self.wide = self.unread", False),
    ],
)
def test_a_copy_that_init_changes_is_a_use(init: str, is_settled: bool, tmp_path: Path) -> None:
    """`factor` decides a test of a statement, and nothing else reads it unless `init` does."""
    statement = "if self.factor > 3:\n            hidden_states = -hidden_states"
    settled, _ = read(tmp_path, statement, init=init)
    assert ("factor" in settled) is is_settled
