"""`check`, `inspect`, `explain` and `check --fix` on GGUF files of families whose converter changes more than names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.adapters import gguf_families, llama_cpp
from tests.adapters.gguf_families import CASES
from tests.adapters.test_user_dialect import FAMILY, written
from tests.cli.conftest import Bringup

# A parameter of the family, and the tensor that it is in.
READS = {
    "gpt2": ("transformer.h.1.attn.c_attn.weight", "blk.1.attn_qkv.weight"),
    "bloom": ("transformer.h.1.self_attention.k_proj.bias", "blk.1.attn_qkv.bias"),
    "gpt-neox": ("gpt_neox.layers.1.attention.v_proj.weight", "blk.1.attn_qkv.weight"),
    "deepseek-v2": ("model.layers.2.self_attn.k_b_proj.weight", "blk.2.attn_k_b.weight"),
    "deepseek-v2-of-2024": ("model.layers.2.self_attn.v_b_proj.weight", "blk.2.attn_kv_b.weight"),
    "deepseek-v3": ("model.layers.1.mlp.gate.e_score_correction_bias", "blk.1.exp_probs_b.bias"),
    "glm4-moe": ("model.layers.1.mlp.shared_experts.up_proj.weight", "blk.1.ffn_up_shexp.weight"),
    "gpt-oss": ("model.layers.0.self_attn.sinks", "blk.0.attn_sinks.weight"),
    "exaone": ("model.layers.0.mlp.gate_proj.weight", "blk.0.ffn_gate.weight"),
    "qwen": ("model.layers.1.self_attn.q_proj.bias", "blk.1.attn_qkv.bias"),
    "internlm2": ("model.layers.1.self_attn.k_proj.weight", "blk.1.attn_k.weight"),
}


@pytest.mark.parametrize("name", READS)
def test_a_file_is_checked_inspected_and_explained(bringup: Bringup, name: str, tmp_path: Path) -> None:
    _, file = gguf_families.write(CASES[name], tmp_path)
    parameter, tensor = READS[name]
    checked = bringup("check", "--checkpoint", file)
    assert checked.exit_code == 0, checked.output
    assert checked.stdout.endswith("fits\n")
    found = json.loads(bringup("inspect", file, "--format", "json").stdout)
    assert found["format"] == "gguf"
    assert found["config"]["unread"] == {}
    explained = bringup("explain", parameter, "--checkpoint", file)
    assert explained.exit_code == 0, explained.output
    assert tensor in explained.stdout
    back = bringup("explain", tensor, "--checkpoint", file)
    assert parameter.replace(".1.", ".").split(".")[-1] in back.stdout


def test_a_misspelt_name_in_a_dialect_is_repaired(bringup: Bringup, tmp_path: Path) -> None:
    """The dialect's table, in the file of the family."""
    (_, file), right = written(tmp_path), FAMILY
    (tmp_path / "mine.py").write_text(right.replace("blk.{L}.ffn_norm.weight", "blk.{L}.fnn_norm.weight"), "utf-8")
    result = bringup("check", tmp_path / "mine.py", "--checkpoint", file, "--fix")
    assert result.exit_code == 0, result.output
    assert (tmp_path / "mine.py").read_text("utf-8") == right


def test_a_misspelt_name_in_an_adapter_of_a_gguf_file_is_repaired(bringup: Bringup, tmp_path: Path) -> None:
    _, file = gguf_families.write(CASES["bloom"], tmp_path)
    right = Path(llama_cpp.__file__).parents[2].joinpath("adapters/dialects/bloom.py").read_text("utf-8")
    right = right.partition("\n\ndef derived")[0].replace("def table(", "def adapter(")
    own = tmp_path / "mine.py"
    own.write_text(right.replace('S("token_embd_norm.{p}")', 'S("tokn_embd_norm.{p}")'), "utf-8")
    broken = bringup("check", "--checkpoint", file, "--adapter", own)
    assert (broken.exit_code, "BU101" in broken.stdout) == (1, True)
    result = bringup("check", "--checkpoint", file, "--adapter", own, "--fix")
    assert result.exit_code == 0, result.output
    assert own.read_text("utf-8") == right
