"""Checkpoints written by transformers, as drafts that tests may modify.

A draft is a checkpoint in memory. Its arrays may be real, to be written to disk, or of full size without memory
(`np.broadcast_to`), for checks that read headers only.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
ROOT = HERE.parent.parent


@dataclass(frozen=True)
class Family:
    """A family's checkpoints, and, where it has the faults, the tensors they fall on, named within their layer."""

    name: str
    model: str | None  # what `bringup check` is given as MODEL
    rules: Path  # the file that holds the rules
    root: str  # the first name of parameters and, in some files, of tensors
    layers: str
    layers_key: str  # in config.json
    embedding: str = ""
    vector: str = ""
    matrix: str = ""  # rectangular
    other: str = ""  # rectangular
    typo: str = ""  # of `other`
    number: str = ""  # a matrix that is stored as integers
    square: str = ""
    forgetful: Path | None = None  # an adapter whose rule for `square` forgets the transpose


GPT2 = Family(
    name="gpt2",
    model=None,
    rules=ROOT / "adapters/gpt2.py",
    root="transformer.",
    layers="h",
    layers_key="n_layer",
    embedding="wte.weight",
    vector="ln_2.weight",
    matrix="attn.c_attn.weight",
    other="mlp.c_proj.weight",
    typo="mlp.c_prj.weight",
    number="mlp.c_fc.weight",
    square="attn.c_proj.weight",
    forgetful=HERE / "forgetful_gpt2.py",
)
LLAMA = Family(
    name="llama",
    model=None,
    rules=ROOT / "adapters/llama.py",
    root="model.",
    layers="layers",
    layers_key="num_hidden_layers",
    embedding="embed_tokens.weight",
    vector="input_layernorm.weight",
    matrix="mlp.gate_proj.weight",
    other="mlp.down_proj.weight",
    typo="mlp.down_prj.weight",
    number="mlp.up_proj.weight",
    square="self_attn.q_proj.weight",
    forgetful=HERE / "forgetful_llama.py",
)
MIXTRAL = Family(
    name="mixtral",
    model=None,
    rules=ROOT / "adapters/mixtral.py",
    root="model.",
    layers="layers",
    layers_key="num_hidden_layers",
    embedding="embed_tokens.weight",
    vector="input_layernorm.weight",
    matrix="self_attn.k_proj.weight",
    other="self_attn.o_proj.weight",
    typo="self_attn.out_proj.weight",
    number="self_attn.v_proj.weight",
    square="self_attn.q_proj.weight",
)
FUSED = replace(MIXTRAL, name="fused", model=str(HERE / "fused_mixtral.py"), rules=HERE / "fused_mixtral.py")


@dataclass
class Draft:
    """A checkpoint that may be spoilt: the words of config.json, and the tensors by name."""

    family: Family
    config: dict[str, Any]
    tensors: dict[str, np.ndarray]
    prefixed: bool = True  # whether names begin with the family's root

    def copy(self) -> Draft:
        return Draft(self.family, json.loads(json.dumps(self.config)), dict(self.tensors), self.prefixed)

    def bare(self) -> Draft:
        """The same checkpoint with the root left out of its names, as the bare model's files have it."""
        root = self.family.root
        return Draft(
            self.family,
            self.config,
            {name.removeprefix(root): array for name, array in self.tensors.items()},
            prefixed=False,
        )

    @property
    def depth(self) -> int:
        """How many layers the weights have."""
        at = self.name(self.family.layers) + "."
        return len({name.removeprefix(at).partition(".")[0] for name in self.tensors if name.startswith(at)})

    def name(self, short: str, layer: int | None = None) -> str:
        """The tensor's whole name in this checkpoint."""
        inner = short if layer is None else f"{self.family.layers}.{layer}.{short}"
        return f"{self.family.root}{inner}" if self.prefixed else inner

    def parameter(self, short: str, layers: str = "") -> str:
        """The graph's name for it; `layers` as a report groups them."""
        inner = f"{self.family.layers}.{layers}.{short}" if layers else short
        return f"{self.family.root}{inner}"

    def every(self) -> str:
        return f"{{0..{self.depth - 1}}}"

    def replace(self, name: str, array: np.ndarray, to: str = "") -> None:
        """Another array in a tensor's place; the order of the file stays."""
        self.tensors = {
            (to or name) if old == name else old: array if old == name else value for old, value in self.tensors.items()
        }


def read_draft(folder: Path, family: Family) -> Draft:
    """A checkpoint folder that transformers wrote."""
    from safetensors.numpy import load_file

    tensors = load_file(folder / "model.safetensors")
    return Draft(family, json.loads((folder / "config.json").read_text("utf-8")), tensors)


def write_draft(draft: Draft, folder: Path, shards: int = 1) -> Path:
    """A folder that bringup and transformers both open. `shards` is into how many files, with an index."""
    from safetensors.numpy import save_file

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(draft.config, indent=2), "utf-8")
    tensors = {name: np.ascontiguousarray(array) for name, array in draft.tensors.items()}
    if shards == 1:
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return folder
    where: dict[str, str] = {}
    for k in range(shards):
        file = f"model-{k + 1:05}-of-{shards:05}.safetensors"
        part = dict(list(tensors.items())[k::shards])
        where |= dict.fromkeys(part, file)
        save_file(part, folder / file, metadata={"format": "pt"})
    size = sum(array.nbytes for array in tensors.values())
    index = {"metadata": {"total_size": size}, "weight_map": where}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), "utf-8")
    return folder


def tiny(family: Family, folder: Path, config: Any = None) -> Path:
    """A small random model of the family, as transformers saves it; no tensor is as a new one would be."""
    import torch
    import transformers

    transformers.utils.logging.disable_progress_bar()
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config or CONFIGS[family.name]())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    model.save_pretrained(folder)
    return folder


def _gpt2() -> Any:
    from transformers import GPT2Config

    return GPT2Config(vocab_size=50, n_positions=64, n_embd=32, n_layer=3, n_head=2, bos_token_id=0, eos_token_id=0)


def _llama() -> Any:
    from transformers import LlamaConfig

    return LlamaConfig(
        vocab_size=50,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
    )


def _mixtral() -> Any:
    from transformers import MixtralConfig

    return MixtralConfig(
        vocab_size=50,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=4,
        num_experts_per_tok=2,
        max_position_embeddings=64,
    )


CONFIGS: Mapping[str, Callable[[], Any]] = {"gpt2": _gpt2, "llama": _llama, "mixtral": _mixtral, "fused": _mixtral}
