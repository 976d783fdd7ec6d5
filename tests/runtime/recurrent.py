"""A model with recurrent layers: every other layer is a gated DeltaNet, whose states are a row for each sequence."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import bringup
from bringup.compile.job import Job, job_of
from bringup.graphs.core.axes import shape_of
from bringup.graphs.core.module import Module
from bringup.graphs.decoder import CausalLM, PreNormLayer
from bringup.graphs.layers.attention import GroupedAttention
from bringup.graphs.layers.delta_net import GatedDeltaNet
from bringup.graphs.layers.mlp import GatedMLP
from bringup.graphs.llama import LlamaConfig

VOCAB, CONTEXT = 67, 256
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": VOCAB, "hidden_size": 24,
    "intermediate_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT, "rms_norm_eps": 1e-5,
}  # fmt: skip
KEY_HEADS, VALUE_HEADS, K, V, TAPS = 2, 4, 8, 6, 4


class WithoutPositions(Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.delta = GatedDeltaNet(hidden, KEY_HEADS, VALUE_HEADS, K, V, taps=TAPS, eps=1e-6)

    def forward(self, x, cos, sin, step):
        return self.delta(x, step)


class Recurrent(CausalLM):
    def layer(self, config: Any, index: int) -> PreNormLayer:
        m, h, g, d = config.hidden, config.num_heads, config.num_kv_heads, config.head_dim
        mixer = GroupedAttention(m, h, g, d) if index % 2 else WithoutPositions(m)
        return PreNormLayer(m, config.eps, mixer, GatedMLP(m, config.ffn, config.activation))


@cache
def job(dtype: str = "float32") -> Job:
    """The model with random weights."""
    graph, random = Recurrent(LlamaConfig.from_hf(CONFIG), dtype), np.random.default_rng(0)
    shapes = {name: shape_of(declared.axes) for name, declared in graph.signature().items()}
    weights = {name: random.standard_normal(shape).astype(np.float32) * 0.3 for name, shape in shapes.items()}
    return job_of(graph, weights | {name: 1 + weights[name] for name in weights if "norm" in name})


def compiled(out: Path, target: str, **settings: Any) -> Path:
    return bringup.build(job(), out=out, target=target, **{"buckets": (32,), **settings})
