"""Drafts of an architecture whose code is in the checkpoint's folder, with names that no published family has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bringup.compile.draft.draft import Draft, draft
from bringup.compile.draft.modelling.own_code import MOST_BYTES, own_code
from tests.draft.headers import checkpoint

CONFIG_CODE = """
class WombatConfig(PretrainedConfig):
    def __init__(self, hidden_size=16, tie_word_embeddings=True, far=0xFFFFFFFFFFFFFFFFFFFF, **kwargs):
        self.hidden_size = hidden_size
"""
CODE = """
class WombatBlock(nn.Module):
    def __init__(self, config):
        self.weight = config.residual_scale
        self.gain = config.query_gain / 2

    def forward(self, x):
        return x + self.weight * self.attn(self.ln_1(x))


class WombatForCausalLM(PreTrainedModel):
    def __init__(self, config):
        self.h = nn.ModuleList([WombatBlock(config)])
"""
OWN: dict[str, Any] = {
    "model_type": "wombat", "architectures": ["WombatForCausalLM"], "rope_base": 5e4, "residual_scale": 0.25,
    "query_gain": 1.5, "tie_word_embeddings": True, "num_attention_heads": 4, "num_key_value_heads": 2,
    "auto_map": {
        "AutoConfig": "configuration_wombat.WombatConfig",
        "AutoModelForCausalLM": "modeling_wombat.WombatForCausalLM",
    },
}  # fmt: skip


def tensors(m: int = 16, f: int = 24, vocab: int = 32) -> dict[str, tuple[int, ...]]:
    """As `save_pretrained` writes them: Conv1D matrices, biases before weights, norms with a `scale`."""
    found: dict[str, tuple[int, ...]] = {"transformer.wte.weight": (vocab, m), "transformer.ln_f.scale": (m,)}
    for name, shape in (
        ("attn.c_out", (m, m)), ("attn.c_qkv", (m, 2 * m)), ("mlp.c_down", (f, m)), ("mlp.c_gate", (m, f)),
        ("mlp.c_up", (m, f)),
    ):  # fmt: skip
        found |= {f"transformer.h.0.{name}.bias": shape[1:], f"transformer.h.0.{name}.weight": shape}
    return found | {f"transformer.h.0.ln_{x}.scale": (m,) for x in (1, 2)}


def drafted(folder: Path, code: str = CODE) -> Draft:
    (folder / "modeling_wombat.py").write_text(code, "utf-8")
    (folder / "configuration_wombat.py").write_text(CONFIG_CODE, "utf-8")
    return draft(checkpoint(tensors(), str(folder), **OWN))


def test_every_tensor_has_one_rule(tmp_path: Path) -> None:
    found = drafted(tmp_path)
    text = found.files["wombat_adapter.py"]
    assert found.open == 0
    for parameter, source in (
        ("self_attn.o_proj.weight", 'S("h.{L}.attn.c_out.weight", "in out")'),
        ("mlp.down_proj.bias", 'S("h.{L}.mlp.c_down.bias")'),
        ("input_layernorm.weight", 'S("h.{L}.ln_1.scale")'),
    ):
        assert f'wombat["model.layers.{{L}}.{parameter}"] = {source}\n' in text
    for x in "qkvo":
        assert text.count(f'self_attn.{x}_proj.weight"] =') == 1


def test_statements_and_defaults_are_those_of_the_checkpoint(tmp_path: Path) -> None:
    text = drafted(tmp_path).files["wombat_graph.py"]
    assert "modeling_wombat.py: return x + config.residual_scale * self.attn(self.ln_1(x))" in text
    assert "modeling_wombat.py: self.gain = config.query_gain / 2" in text
    assert 'theta_key="rope_base"' in text
    assert "tied=True" in text
    assert "absent keys" not in text


@pytest.mark.parametrize(
    "code",
    ["class (", "\0", f"x = {'(' * 5000}{')' * 5000}", f"x = {'-' * 9000}1", "#" * (MOST_BYTES + 1)],
    ids=["no Python", "null bytes", "nested", "nested operators", "long"],
)
def test_code_that_cannot_be_read_is_left_out(tmp_path: Path, code: str) -> None:
    assert "modeling_wombat.py" not in drafted(tmp_path, code).files["wombat_graph.py"]


@pytest.mark.parametrize(
    "stated", [None, 3, "other", "../modeling.Model", "repo/name--modeling.Model", "missing.Model"]
)
def test_only_files_of_the_folder_are_read(tmp_path: Path, stated: object) -> None:
    (tmp_path / "modeling.py").write_text(CODE, "utf-8")
    assert own_code({"auto_map": {"AutoModel": stated}}, tmp_path) is None


def test_each_key_of_a_table_is_a_question() -> None:
    found = draft(checkpoint(tensors(), **OWN, attn_config={"clip": 8.0, "dtype": None}))
    texts = [question.text for question in found.questions if "attn_config" in question.text]
    assert [text.partition(":")[0] for text in texts] == ["`attn_config.clip` is 8.0"]
    assert 'table = fields.inner("attn_config")' in found.files["wombat_graph.py"]
