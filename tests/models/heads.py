"""EAGLE-3 heads with random weights, and their logits by the published formulas: all rows at once, without a cache.

arXiv 2503.01840 §3; SafeAILab/EAGLE `eagle/model/cnets.py`, speculators `models/eagle3/core.py`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from tests.models import parity
from tests.models.family import PROMPT, STEPS, Written

FILE = "model.safetensors"
Tensors = dict[str, torch.Tensor]
SPECULATORS = ("draft_vocab_size", "target_hidden_size", "norm_before_residual", "norm_before_fc", "fc_norm")
SPECULATORS += ("norm_output", "eagle_aux_hidden_state_layer_ids", "torch_dtype")


class Head(Written):
    """A head that `save` wrote. Every third row reads the head's own hidden state, the others the main model's."""

    @property
    def inputs(self) -> Mapping[str, np.ndarray]:
        tensors, config = read(self.checkpoint)
        random, count = np.random.default_rng(3), PROMPT + STEPS
        widths = {"hidden": tensors["fc.weight"].shape[1], "own": layer_of(config)["hidden_size"]}
        found = {name: random.standard_normal((count, width), np.float32) for name, width in widths.items()}
        # values of bfloat16, so that no dtype rounds them
        found = {name: torch.from_numpy(rows).bfloat16().float().numpy() for name, rows in found.items()}
        own = np.arange(count) % 3 == 2
        found["hidden"][own], found["own"][~own] = 0, 0
        return found

    def theirs(self, dtype: str = "auto") -> tuple[list[int], np.ndarray]:
        tokens = parity.random_tokens(PROMPT + STEPS, layer_of(read(self.checkpoint)[1])["vocab_size"])
        return tokens, outputs(self.checkpoint, tokens, *self.inputs.values(), dtype=dtype)[0]


def save(
    config: PreTrainedConfig | dict[str, Any],
    folder: Path,
    dtype: str = "float32",
    *,
    layer: str = "midlayer.",
    embedding: bool = True,
    seed: int = 2,
) -> Path:
    """A head of this config; `layer` is the prefix of its layer's tensors."""
    raw = config if isinstance(config, dict) else json.loads(config.to_json_string())
    return write(folder, random_tensors(raw, dtype, layer=layer, embedding=embedding, seed=seed), raw)


def random_tensors(raw: dict[str, Any], dtype: str, *, layer: str, embedding: bool, seed: int) -> Tensors:
    random, words = torch.Generator().manual_seed(seed), layer_of(raw)
    m, f, vocab, h = (words[k] for k in ("hidden_size", "intermediate_size", "vocab_size", "num_attention_heads"))
    d, drafted = words.get("head_dim") or m // h, raw.get("draft_vocab_size") or vocab
    g = words.get("num_key_value_heads") or h
    states = raw.get("eagle_aux_hidden_state_layer_ids") or (raw.get("eagle_config") or {}).get(
        "eagle_aux_hidden_state_layer_ids", (0, 0, 0)
    )
    s = raw.get("target_hidden_size") or m
    shapes = {"fc": (m, len(states) * s), "lm_head": (drafted, m), "norm": (m,)}
    if embedding:
        shapes["embed_tokens"] = (vocab, m)
    if raw.get("norm_before_fc"):
        shapes["input_norm"] = (len(states) * s,)
    if raw.get("fc_norm"):
        shapes |= {f"fc_norm.{number}": (s,) for number in range(len(states))}
    own = {norm: (m,) for norm in ("input_layernorm", "hidden_norm", "post_attention_layernorm")}
    projections = {"q": (h * d, 2 * m), "k": (g * d, 2 * m), "v": (g * d, 2 * m), "o": (m, h * d)}
    own |= {f"self_attn.{name}_proj": shape for name, shape in projections.items()}
    own |= {f"mlp.{name}_proj": shape for name, shape in {"gate": (f, m), "up": (f, m), "down": (m, f)}.items()}
    if words.get("model_type") == "qwen3":
        own |= {f"self_attn.{name}_norm": (d,) for name in "qk"}
    shapes |= {layer + name: shape for name, shape in own.items()}
    found: Tensors = {}
    for name, shape in shapes.items():
        gain = parity.GAIN[dtype] * shape[-1] ** -0.5
        empty = torch.empty(shape)
        values = (
            empty.uniform_(0.5, 1.5, generator=random) if len(shape) == 1 else empty.normal_(0, gain, generator=random)
        )
        found[f"{name}.weight"] = values.to(getattr(torch, dtype))
        biased = words.get("attention_bias") if "self_attn" in name else words.get("mlp_bias") and "mlp" in name
        if biased and name.endswith("_proj"):
            found[f"{name}.bias"] = torch.empty(shape[0]).normal_(0, 0.3, generator=random).to(getattr(torch, dtype))
    if drafted < vocab:
        tokens = torch.randperm(vocab, generator=random)[:drafted].sort().values
        found["d2t"] = tokens - torch.arange(drafted)
        found["t2d"] = torch.zeros(vocab, dtype=torch.bool).index_fill(0, tokens, True)
    return found


def write(folder: Path, tensors: Tensors, config: dict[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / FILE, metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    return folder


def read(folder: Path) -> tuple[Tensors, dict[str, Any]]:
    """The tensors of a head and its config."""
    return load_file(folder / FILE), json.loads((folder / "config.json").read_text("utf-8"))


def layer_of(raw: dict[str, Any]) -> dict[str, Any]:
    """The keys of the layer."""
    return raw.get("transformer_layer_config", raw)


def speculators(raw: dict[str, Any]) -> dict[str, Any]:
    """The same config as the speculators library saves it."""
    own = {key: raw[key] for key in SPECULATORS if key in raw}
    inner = {key: value for key, value in raw.items() if key not in own and key != "architectures"}
    verifier = {"architectures": ["LlamaForCausalLM"], "name_or_path": "meta-llama/Llama-3.1-8B-Instruct"}
    proposal = {"accept_tolerance": 0.0, "proposal_type": "greedy", "speculative_tokens": 3, "verifier_accept_k": 1}
    words = {"algorithm": "eagle3", "default_proposal_method": "greedy", "proposal_methods": [proposal]}
    return own | {
        "architectures": ["Eagle3Speculator"], "auto_map": {"": "eagle3.Eagle3SpeculatorConfig"},
        "has_no_defaults_at_init": False, "speculators_config": words | {"verifier": verifier},
        "speculators_model_type": "eagle3", "speculators_version": "0.1.0", "transformer_layer_config": inner,
        "embed_requires_grad": False, "tie_word_embeddings": False, "transformers_version": "4.53.2",
    }  # fmt: skip


def outputs(
    folder: Path, tokens: list[int], hidden: np.ndarray, own: np.ndarray, dtype: str = "auto"
) -> tuple[np.ndarray, np.ndarray]:
    """Float32 [T, V] and [T, m]: the logits, -infinity for tokens without a row, and the head's own hidden states."""
    tensors, raw = read(folder)
    words = layer_of(raw)
    kind = tensors["fc.weight"].dtype if dtype == "auto" else getattr(torch, dtype)
    names = {name.removeprefix("midlayer.").removeprefix("layers.0."): tensor for name, tensor in tensors.items()}

    def linear(name: str, x: torch.Tensor) -> torch.Tensor:
        product = x @ names[f"{name}.weight"].to(kind).T
        return product + names[f"{name}.bias"].to(kind) if f"{name}.bias" in names else product

    def norm(name: str, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + words["rms_norm_eps"])
        return names[f"{name}.weight"].to(kind) * wide.to(kind)

    given, proposed = (torch.from_numpy(rows).to(kind) for rows in (hidden, own))
    if raw.get("norm_before_fc"):
        given = norm("input_norm", given)
    if raw.get("fc_norm"):
        count = sum(name.startswith("fc_norm.") for name in names)
        given = torch.cat([norm(f"fc_norm.{n}", part) for n, part in enumerate(given.chunk(count, -1))], -1)
    reads_own = torch.from_numpy((own != 0).any(-1, keepdims=True))
    x = torch.where(reads_own, proposed, linear("fc", given))
    token = norm("input_layernorm", names["embed_tokens.weight"].to(kind)[torch.tensor(tokens)])
    normed = norm("hidden_norm", x)
    residual = normed if raw.get("norm_before_residual") else x
    x = residual + _attention(words, linear, norm, torch.cat((token, normed), -1))
    inner = norm("post_attention_layernorm", x)
    act = {"silu": torch.nn.functional.silu, "gelu": torch.nn.functional.gelu}[words["hidden_act"]]
    x = x + linear("mlp.down_proj", act(linear("mlp.gate_proj", inner)) * linear("mlp.up_proj", inner))
    last = norm("norm", x)
    drafted = linear("lm_head", last).float()
    if "d2t" not in tensors:
        logits = drafted
    else:
        logits = torch.full((len(tokens), words["vocab_size"]), -torch.inf)
        for row, offset in enumerate(tensors["d2t"].tolist()):
            logits[:, row + offset] = drafted[:, row]
    return logits.numpy(), (last if raw.get("norm_output") else x).float().numpy()


def _attention(words: dict[str, Any], linear: Any, norm: Any, x: torch.Tensor) -> torch.Tensor:
    from transformers import LlamaConfig

    h, g = words["num_attention_heads"], words.get("num_key_value_heads") or words["num_attention_heads"]
    q, k, v = (
        linear(f"self_attn.{name}_proj", x).unflatten(1, (count, -1))
        for name, count in zip("qkv", (h, g, g), strict=True)
    )
    if words.get("model_type") == "qwen3":
        q, k = norm("self_attn.q_norm", q), norm("self_attn.k_norm", k)
    rotary = LlamaRotaryEmbedding(LlamaConfig(**{**words, "model_type": "llama"}))
    cos, sin = (each[0][:, None] for each in rotary(x[None], torch.arange(len(x))[None]))

    def turned(y: torch.Tensor) -> torch.Tensor:
        one, other = y.chunk(2, -1)
        return y * cos + torch.cat((-other, one), -1) * sin

    q, k = turned(q), turned(k)
    rows: list[torch.Tensor] = []
    for head in range(h):
        shared = head * g // h
        scores = (q[:, head] @ k[:, shared].T).float() * q.shape[-1] ** -0.5
        scores = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -torch.inf)
        rows.append(scores.softmax(-1).to(x.dtype) @ v[:, shared])
    return linear("self_attn.o_proj", torch.cat(rows, -1))
