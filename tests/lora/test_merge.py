"""`bringup lora merge`: the checkpoint with ΔW in it, against what peft's `merge_and_unload` gives."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors.numpy import load_file, save_file
from safetensors.torch import load_file as load_torch
from safetensors.torch import save_file as save_torch
from transformers import AutoModelForCausalLM

from bringup.cli.main import cli
from tests.lora.written import TOKENS, Case, write

MAGNITUDE = "magnitude_vector"
CASES = {
    "llama": Case("llama", {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "down_proj", "lm_head"]}),
    "gpt2": Case("gpt2", {"r": 4, "target_modules": ["c_attn", "c_proj"], "fan_in_fan_out": True}),
    "mixtral": Case("mixtral", {"r": 4, "target_modules": ["o_proj", "w1", "w2", "w3"]}),
    "phi3": Case("phi3", {"r": 4, "target_modules": "all-linear"}),
    "deepseek_v3": Case("deepseek_v3", {"r": 4, "target_modules": ["kv_b_proj", "q_b_proj"]}),
    "DoRA of rows of several parameters": Case(
        "deepseek_v3", {"r": 4, "target_modules": ["kv_b_proj", "q_b_proj"], "use_dora": True}
    ),
    "DoRA of columns and an embedding, biases, trained norms": Case(
        "gpt2", {"r": 4, "target_modules": ["c_attn", "wte"], "use_dora": True, "fan_in_fan_out": True,
                 "bias": "lora_only", "modules_to_save": ["ln_f"]}, {"tie_word_embeddings": False},
    ),
    "rows of a tied embedding": Case(
        "qwen3", {"r": 4, "target_modules": ["q_proj"], "trainable_token_indices": [5, 3]},
        {"tie_word_embeddings": True},
    ),
    "a trained embedding, tied": Case(
        "qwen3", {"r": 4, "target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"],
                  "ensure_weight_tying": True}, {"tie_word_embeddings": True},
    ),
    "trained experts and routers under names of transformers 5, and a trained head that is a target": Case(
        "mixtral", {"r": 4, "target_modules": ["q_proj", "lm_head"],
                    "modules_to_save": ["gate", "mlp.experts", "lm_head"]},
    ),
}  # fmt: skip


def run(*words: str) -> str:
    result = CliRunner().invoke(cli, ["lora", *words])
    assert result.exit_code == 0, result.output
    return result.stderr


@pytest.mark.parametrize("name", CASES)
def test_the_merged_checkpoint_is_the_one_that_peft_merges(name: str, tmp_path: Path) -> None:
    written = write(CASES[name], tmp_path)
    run("merge", str(written.lora), "--checkpoint", str(written.base), "-o", str(tmp_path / "merged"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from peft import PeftModel

        base = AutoModelForCausalLM.from_pretrained(written.base)
        PeftModel.from_pretrained(base, written.lora).merge_and_unload().save_pretrained(tmp_path / "peft")
        model = AutoModelForCausalLM.from_pretrained(tmp_path / "merged").eval()
    ours, theirs = (load_file(tmp_path / folder / "model.safetensors") for folder in ("merged", "peft"))
    assert ours.keys() == theirs.keys() == load_file(written.base / "model.safetensors").keys()
    for tensor, array in theirs.items():
        np.testing.assert_allclose(ours[tensor], array, rtol=1e-5, atol=1e-6, err_msg=tensor)
    with torch.no_grad():
        logits = model(torch.tensor([TOKENS])).logits[0].numpy()
    assert np.abs(logits - written.logits).max() <= 1e-5 * np.abs(written.logits).max()
    assert np.abs(written.plain - written.logits).max() > 1e-3


def test_the_base_is_the_one_that_the_config_names(tmp_path: Path) -> None:
    written = write(CASES["llama"], tmp_path)
    config = written.lora / "adapter_config.json"
    text = config.read_text().replace('"base_model_name_or_path": null', f'"base_model_name_or_path": "{written.base}"')
    config.write_text(text)
    result = CliRunner().invoke(cli, ["lora", "check", str(written.lora)])
    assert "5 parameters, 11 tensors, 10 read, 1 dropped — fits" in result.output


@pytest.mark.parametrize(
    ("words", "unmerged"),
    [
        ({"target_modules": ["embed_tokens"]}, True),
        ({"target_modules": ["embed_tokens"], "use_dora": True}, False),
        ({"modules_to_save": ["embed_tokens"]}, False),
    ],
)
def test_a_tied_head_is_not_merged_silently(words: dict[str, Any], unmerged: bool, tmp_path: Path) -> None:
    """peft merges into the one matrix, which changes the head as well. The help names what the adapter supports."""
    case = Case("llama", {"r": 4, "target_modules": ["q_proj"], **words}, {"tie_word_embeddings": True})
    written = write(case, tmp_path)
    command = ["lora", "merge", str(written.lora), "--checkpoint", str(written.base), "-o", str(tmp_path / "out")]
    result = CliRunner().invoke(cli, command)
    assert result.exit_code == 1
    assert "error[BU171]" in result.stderr
    assert ("apply the adapter without merging it" in " ".join(result.stderr.split())) == unmerged


def test_a_tied_head_that_the_adapter_ties_too_is_merged(tmp_path: Path) -> None:
    """`ensure_weight_tying`: what is added to the embedding is added to the head. peft itself merges it twice."""
    words = {"r": 4, "target_modules": ["embed_tokens"], "ensure_weight_tying": True}
    written = write(Case("llama", words, {"tie_word_embeddings": True}), tmp_path)
    run("merge", str(written.lora), "--checkpoint", str(written.base), "-o", str(tmp_path / "merged"))
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "merged").eval()
    with torch.no_grad():
        logits = model(torch.tensor([TOKENS])).logits[0].numpy()
    assert np.abs(logits - written.logits).max() <= 1e-5 * np.abs(written.logits).max()

    file = written.lora / "adapter_model.safetensors"
    tensors = load_file(file)
    name = "base_model.model.lm_head.lora_A.weight"
    words = ["lora", "merge", str(written.lora), "--checkpoint", str(written.base), "-o", str(tmp_path / "other")]
    for array, message in (
        (2 * tensors[name], "is not `base_model.model.model.embed_tokens.lora_embedding_B` with its axes exchanged"),
        (tensors[name][:, :-1].copy(), "with its axes exchanged"),
    ):
        save_file({**tensors, name: array}, file)
        result = CliRunner().invoke(cli, words)
        assert result.exit_code == 1
        assert "error[BU168]" in result.stderr
        assert message in " ".join(result.stderr.split())


def test_convert_from_the_command_line(tmp_path: Path) -> None:
    written = write(CASES["phi3"], tmp_path)
    base = ["--model", "phi3", "--checkpoint", str(written.base)]
    run("convert", str(written.lora), *base, "-o", str(tmp_path / "out"), "--storage-type", "bfloat16")
    run("convert", str(tmp_path / "out"), *base, "--to", "peft", "-o", str(tmp_path / "back"))
    assert "fits" in CliRunner().invoke(cli, ["lora", "check", str(tmp_path / "back"), *base]).output
    refused = CliRunner().invoke(
        cli, ["lora", "convert", str(written.lora), *base, "-o", str(tmp_path / "n"), "--format", "numpy",
              "--storage-type", "bfloat16"],
    )  # fmt: skip
    assert "error[BU139]" in refused.stderr


def test_a_sum_in_bfloat16_is_rounded_once(tmp_path: Path) -> None:
    """The factors are float32, and the base bfloat16."""
    words = {"r": 4, "lora_alpha": 6, "target_modules": ["q_proj"]}
    written = write(Case("llama", words), tmp_path)
    AutoModelForCausalLM.from_pretrained(written.base).bfloat16().save_pretrained(written.base)
    run("merge", str(written.lora), "--checkpoint", str(written.base), "-o", str(tmp_path / "merged"))
    base, merged = (load_torch(folder / "model.safetensors") for folder in (written.base, tmp_path / "merged"))
    name = "model.layers.0.self_attn.q_proj"
    factors = load_torch(written.lora / "adapter_model.safetensors")
    a, b = (factors[f"base_model.model.{name}.lora_{x}.weight"].double() for x in "AB")
    exact = base[f"{name}.weight"].double() + 1.5 * (b @ a)
    assert torch.equal(merged[f"{name}.weight"], exact.bfloat16())


def test_dora_in_bfloat16(tmp_path: Path) -> None:
    """All tensors of the adapter are bfloat16, and the base float32."""
    written = write(Case("llama", {"r": 4, "lora_alpha": 6, "target_modules": ["q_proj"], "use_dora": True}), tmp_path)
    file, name = written.lora / "adapter_model.safetensors", "model.layers.0.self_attn.q_proj"
    factors = {tensor: array.bfloat16() for tensor, array in load_torch(file).items()}
    save_torch(factors, file)
    run("merge", str(written.lora), "--checkpoint", str(written.base), "-o", str(tmp_path / "merged"))
    base, merged = (load_torch(folder / "model.safetensors") for folder in (written.base, tmp_path / "merged"))
    a, b, m = (factors[f"base_model.model.{name}.lora_{x}"].double() for x in ("A.weight", "B.weight", MAGNITUDE))
    total = base[f"{name}.weight"].double() + 1.5 * (b @ a)
    wanted = m[:, None] * total / total.norm(dim=1, keepdim=True)
    torch.testing.assert_close(merged[f"{name}.weight"].double(), wanted, rtol=1e-5, atol=1e-6)
