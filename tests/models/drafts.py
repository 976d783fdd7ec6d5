"""Checkpoints with layers after the last one, which predict further tokens; and drafts of transformers' own layers."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedConfig

from tests.models import parity
from tests.models.family import PROMPT, STEPS, Written
from tests.models.test_deepseek_v3 import save_biased

FILE = "model.safetensors"
# What a draft adds to a layer: DeepSeek's names, and Qwen's, whose drafts never have an embedding and a head.
OWN = ("enorm", "hnorm", "eh_proj", "shared_head.norm")
QWEN = dict(zip(OWN, ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "fc", "norm"), strict=True))


class Draft(Written):
    """The first draft of a checkpoint that `save` wrote, fed with random hidden states."""

    @property
    def inputs(self) -> Mapping[str, np.ndarray]:
        return {"hidden": random_hidden(PROMPT + STEPS, read(self.checkpoint)[1]["hidden_size"])}

    def theirs(self, dtype: str = "auto") -> tuple[list[int], np.ndarray]:
        tokens = parity.random_tokens(PROMPT + STEPS, read(self.checkpoint)[1]["vocab_size"])
        return tokens, logits(self.checkpoint, tokens, self.inputs["hidden"], dtype=dtype)


def save(config: PreTrainedConfig, folder: Path, dtype: str = "float32", *, drafts: int = 1, own: bool = True) -> Path:
    """A model of this config with drafts, under the published names. `own`: with embedding and head of their own.

    Beside it, `folder/whole` is what transformers saves of a model that has the drafts' layers as its last.
    """
    whole, layers, m, vocab = copy.deepcopy(config), config.num_hidden_layers, config.hidden_size, config.vocab_size
    whole.num_hidden_layers += drafts
    qwen = config.model_type.startswith("qwen")
    if hasattr(config, "mlp_layer_types"):
        whole.mlp_layer_types = [*config.mlp_layer_types, *["sparse"] * drafts]
    if getattr(config, "layer_types", None) and not qwen:
        whole.layer_types = ["indexed_attention"] * whole.num_hidden_layers
    if hasattr(config, "indexer_types"):
        whole.indexer_types = [*config.indexer_types, *["full"] * drafts]
    if qwen:
        whole.layer_types = [*config.layer_types, "full_attention"]
    if 0 in getattr(config, "mlp_only_layers", ()):
        whole.mlp_only_layers = [*config.mlp_only_layers, layers]
    save_biased(whole, folder / "whole", dtype)
    tensors, random = load_file(folder / "whole" / FILE), torch.Generator().manual_seed(2)
    if qwen:
        at = f"model.layers.{layers}."
        tensors = {name.replace(at, "mtp.layers.0."): array for name, array in tensors.items()}
    for number in range(layers, layers + drafts):
        norms = {
            norm: torch.empty(m).uniform_(0.5, 1.5, generator=random) for norm in ("enorm", "hnorm", "shared_head.norm")
        }
        shared = {"embed_tokens": (vocab, m), "shared_head.head": (vocab, m)} if own and not qwen else {}
        for matrix, shape in ({"eh_proj": (m, 2 * m)} | shared).items():
            norms[matrix] = torch.empty(shape).normal_(0, parity.GAIN[dtype] * shape[1] ** -0.5, generator=random)
        tensors |= {stored(config.model_type, number, name): a.to(getattr(torch, dtype)) for name, a in norms.items()}
    saved = json.loads((folder / "whole" / "config.json").read_text("utf-8"))
    raw = json.loads(config.to_json_string()) | {key: saved[key] for key in ("architectures", "dtype")}
    return write(folder / "published", tensors, raw | ({} if qwen else {"num_nextn_predict_layers": drafts}))


def stored(kind: object, number: int, name: str) -> str:
    """The tensor of a part that a draft adds, by its `model_type`."""
    if str(kind).startswith("qwen"):
        return f"mtp.{QWEN.get(name, name)}.weight"
    return f"model.layers.{number}.{name}.weight"


def write(folder: Path, tensors: dict[str, torch.Tensor], config: dict[str, object]) -> Path:
    folder.mkdir()
    save_file(tensors, folder / FILE, metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    return folder


def read(folder: Path) -> tuple[dict[str, torch.Tensor], dict[str, object]]:
    """The tensors of a checkpoint and its config."""
    return load_file(folder / FILE), json.loads((folder / "config.json").read_text("utf-8"))


def logits(folder: Path, tokens: list[int], hidden: np.ndarray, depth: int = 1, dtype: str = "auto") -> np.ndarray:
    """Float32 [T, V] of a draft, see `outputs`."""
    return outputs(folder, tokens, hidden, depth, dtype)[0]


def outputs(
    folder: Path, tokens: list[int], hidden: np.ndarray, depth: int = 1, dtype: str = "auto"
) -> tuple[np.ndarray, np.ndarray]:
    """Float32 [T, V] and [T, m]: logits of a draft, and the inputs of its head, all rows at once.

    By transformers' decoder of just its layer, and what stands around it.
    `folder` is what `save` gave; `hidden` [T, m], rounded to the checkpoint's dtype before it is taken in any other.
    """
    tensors, config = read(folder)
    number = config["num_hidden_layers"] + depth - 1
    whole = _whole(folder.parent / "whole", dtype)
    model = copy.copy(whole.model)
    model._modules = dict(model._modules)

    def own(name: str, other: str = "") -> torch.Tensor:
        return tensors.get(stored(config["model_type"], number, name), tensors.get(f"{other}.weight")).to(model.dtype)

    def norm(name: str) -> torch.nn.Module:
        copied = copy.deepcopy(model.norm)
        copied.weight = torch.nn.Parameter(own(name), requires_grad=False)
        return copied

    dtype_of_file = tensors[stored(config["model_type"], number, "eh_proj")].dtype
    before = torch.from_numpy(hidden).to(dtype_of_file).to(model.dtype)
    embedded = own("embed_tokens", "model.embed_tokens")[torch.tensor(tokens)]
    own_head = stored(config["model_type"], number, "shared_head.head") in tensors
    head = own("shared_head.head") if own_head else whole.lm_head.weight
    model.layers, model.norm = torch.nn.ModuleList([model.layers[number]]), norm("shared_head.norm")
    if "layer_types" in config:  # transformers chooses the mask of a layer by its number
        model.config = copy.deepcopy(model.config)
        model.config.layer_types = model.config.layer_types[number : number + 1]
    with torch.no_grad():
        joined = torch.cat((norm("enorm")(embedded), norm("hnorm")(before)), -1) @ own("eh_proj").T
        last = model(inputs_embeds=joined[None], use_cache=False).last_hidden_state[0]
        return (last @ head.T).float().numpy(), last.float().numpy()


@cache
def _whole(folder: Path, dtype: str) -> torch.nn.Module:
    return parity.load_reference(folder, dtype)


def random_hidden(count: int, m: int) -> np.ndarray:
    return np.random.default_rng(3).standard_normal((count, m), np.float32)
