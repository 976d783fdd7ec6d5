"""Values of 0: the embedding of `pad_token_id`, which transformers sets to 0 in some families; a head of zeros."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedConfig, YoutuConfig

from bringup.adapters.sources.open_checkpoint import open_checkpoint
from bringup.compile.parity.reference import Reference

PAD, TOKENS = 3, [5, 3, 7, 3, 3, 1]
SIZES: dict[str, Any] = {
    "vocab_size": 32, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 4, "pad_token_id": PAD, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
LATENT = {"q_lora_rank": 16, "kv_lora_rank": 12, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 6}


def saved(config: PreTrainedConfig, folder: Path, row: float = 1.0) -> torch.Tensor:
    """A checkpoint whose padding row has values; the logits of a model with exactly these weights."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    model.save_pretrained(folder)
    file = folder / "model.safetensors"
    tensors = load_file(file)
    tensors["model.embed_tokens.weight"][PAD] = torch.linspace(-row, row, config.hidden_size)
    save_file(tensors, file, {"format": "pt"})
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    assert set(missing) <= {"lm_head.weight"}
    assert not unexpected
    with torch.no_grad():
        return model(torch.tensor([TOKENS])).logits[0]


def reference(folder: Path, dtype: str = "float32") -> Reference:
    opened = open_checkpoint(str(folder))
    return Reference(opened, opened.config, dtype)


@pytest.mark.parametrize("tied", [True, False])
def test_the_reference_has_the_row_of_the_checkpoint(tmp_path: Path, tied: bool) -> None:
    logits = saved(YoutuConfig(**SIZES, **LATENT, tie_word_embeddings=tied), tmp_path)
    found = reference(tmp_path)
    torch.testing.assert_close(torch.from_numpy(found.logits(TOKENS)), logits)
    assert f"sets row {PAD} of `model.embed_tokens.weight` to 0" in found.name


def test_in_16_bits(tmp_path: Path) -> None:
    saved(YoutuConfig(**SIZES, **LATENT), tmp_path)
    found = reference(tmp_path, "bfloat16")
    row = found.model.get_input_embeddings().weight[PAD]
    torch.testing.assert_close(row, torch.linspace(-1, 1, SIZES["hidden_size"]).bfloat16())


def test_a_row_that_is_0_in_the_checkpoint_is_no_difference(tmp_path: Path) -> None:
    logits = saved(YoutuConfig(**SIZES, **LATENT), tmp_path, row=0.0)
    found = reference(tmp_path)
    torch.testing.assert_close(torch.from_numpy(found.logits(TOKENS)), logits)
    assert found.name.startswith("transformers ")
    assert "row" not in found.name


def test_other_families_keep_the_row(tmp_path: Path) -> None:
    logits = saved(LlamaConfig(**SIZES), tmp_path)
    found = reference(tmp_path)
    torch.testing.assert_close(torch.from_numpy(found.logits(TOKENS)), logits)
    assert "row" not in found.name


def test_logits_of_zeros_are_stated(tmp_path: Path) -> None:
    saved(YoutuConfig(**SIZES, **LATENT, tie_word_embeddings=False), tmp_path)
    assert "all of whose logits are 0" not in reference(tmp_path).observe(TOKENS).name
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    save_file({**tensors, "lm_head.weight": torch.zeros_like(tensors["lm_head.weight"])}, file, {"format": "pt"})
    assert (
        reference(tmp_path)
        .observe(TOKENS)
        .name.endswith("so that agreement shows nothing of the layers before the head")
    )
