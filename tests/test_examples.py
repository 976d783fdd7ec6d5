"""The examples do what they say."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from transformers import LlamaConfig, LlamaForCausalLM

import bringup
from bringup.compile.verify.command import activations

EXAMPLES = Path(__file__).parent.parent / "examples"
PAGE = EXAMPLES.parent / "docs" / "coming-from.md"
HEADS, SIZE, LAYERS = 3, 4, 2


def published(folder: Path, reference: LlamaForCausalLM) -> None:
    """The reference's weights in Tiny's names and layout, by hand."""
    state = {name: tensor.numpy() for name, tensor in reference.state_dict().items()}
    tensors = {"embed.weight": state["model.embed_tokens.weight"], "norm.weight": state["model.norm.weight"]}
    tensors["head.weight"] = state["lm_head.weight"]
    for layer in range(LAYERS):
        at, to = f"model.layers.{layer}.", f"blocks.{layer}."
        heads = [state[f"{at}self_attn.{x}_proj.weight"].reshape(HEADS, SIZE, -1) for x in "qkv"]
        tensors[f"{to}qkv.weight"] = np.stack(heads, axis=1).reshape(3 * HEADS * SIZE, -1)
        tensors[f"{to}out.weight"] = state[f"{at}self_attn.o_proj.weight"]
        tensors[f"{to}norm1.weight"] = state[f"{at}input_layernorm.weight"]
        tensors[f"{to}norm2.weight"] = state[f"{at}post_attention_layernorm.weight"]
        tensors |= {f"{to}{x}.weight": state[f"{at}mlp.{x}_proj.weight"] for x in ("gate", "up", "down")}
    save_file({name: np.ascontiguousarray(array) for name, array in tensors.items()}, folder / "model.safetensors")
    config = reference.config.to_dict() | {"architectures": ["TinyForCausalLM"]}
    (folder / "config.json").write_text(json.dumps(config))


def test_a_model_in_one_file(tmp_path):
    torch.manual_seed(0)
    shape = {"hidden_size": HEADS * SIZE, "intermediate_size": 20, "num_hidden_layers": LAYERS}
    config = LlamaConfig(**shape, num_attention_heads=HEADS, vocab_size=31, tie_word_embeddings=False)
    reference = LlamaForCausalLM(config).eval()
    published(tmp_path, reference)
    job = bringup.open_job(str(EXAMPLES / "add_a_model" / "tiny.py"), str(tmp_path))
    assert bringup.check(job).findings == []
    tokens = [3, 1, 4, 1, 5]
    with torch.no_grad():
        wanted = reference(torch.tensor([tokens])).logits[0].numpy()
    assert np.abs(activations(job, tokens)["lm_head"] - wanted).max() <= 1e-5 * np.abs(wanted).max()


@pytest.mark.slow
def test_the_names_of_coming_from(tmp_path):
    """The Python of the page as it is written; both bundles continue a prompt as transformers does."""
    torch.manual_seed(0)
    shape = {"hidden_size": HEADS * SIZE, "intermediate_size": 20, "num_hidden_layers": LAYERS, "eos_token_id": None}
    config = LlamaConfig(**shape, num_attention_heads=HEADS, vocab_size=31, max_position_embeddings=64)
    reference = LlamaForCausalLM(config).eval()
    reference.save_pretrained(tmp_path / "my-llama")
    (code,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    first = done.stdout.splitlines()[0]
    assert first.startswith("['model.embed_tokens.weight', 'model.layers.0.input_layernorm.weight'")
    with torch.no_grad():
        wanted = reference.generate(torch.tensor([[3, 1, 4]]), max_new_tokens=6, do_sample=False)[0, 3:].tolist()
    for name in ("from-memory.bundle", "from-weights.bundle"):
        with bringup.load(tmp_path / name) as session:
            assert list(session.generate([3, 1, 4], max_new_tokens=6)) == wanted


@pytest.mark.slow
def test_quickstart():
    done = subprocess.run([sys.executable, EXAMPLES / "quickstart.py"], capture_output=True, text=True, check=True)
    first, tokens = done.stdout.splitlines()
    assert first == "149 parameters, 0 findings"
    assert len(json.loads(tokens)) == 8
