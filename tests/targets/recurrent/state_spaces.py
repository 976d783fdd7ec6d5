"""A decoder whose layers have a state space, as an operation and by hand."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from bringup.compile.job import Job, job_of
from bringup.graphs.core.axes import shape_of
from bringup.graphs.core.module import Module, Param, State
from bringup.graphs.decoder import CausalLM, PreNormLayer
from bringup.graphs.layers.linear import Linear
from bringup.graphs.layers.mlp import GatedMLP
from bringup.graphs.llama import LlamaConfig
from bringup.graphs.ops.activation import softplus
from bringup.graphs.ops.recurrent.state_space import state_space

if TYPE_CHECKING:
    from torch import Tensor

    from bringup.graphs.core.step import Step

VOCAB, CONTEXT, HIDDEN, LAYERS, EPS = 61, 128, 16, 2, 1e-5
GROUPS, REPEATS, K, V = 2, 3, 8, 5
HEADS = GROUPS * REPEATS
CONFIG = {
    **{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": VOCAB, "hidden_size": HIDDEN},
    **{"intermediate_size": 24, "num_hidden_layers": LAYERS, "num_attention_heads": 2, "rms_norm_eps": EPS},
    **{"max_position_embeddings": CONTEXT, "tie_word_embeddings": False},
}


class StateSpace(Module):
    """Queries, keys, inputs and their time steps are projections; an input is multiplied by its time step."""

    def __init__(self, m: int) -> None:
        super().__init__()
        g, r = GROUPS, REPEATS
        self.q_proj = Linear("out:(g k) in:m", g=g, k=K, m=m, bias=False)
        self.k_proj = Linear("out:(g k) in:m", g=g, k=K, m=m, bias=False)
        self.x_proj = Linear("out:(g r v) in:m", g=g, r=r, v=V, m=m, bias=False)
        self.dt_proj = Linear("out:(g r) in:m", g=g, r=r, m=m, bias=False)
        self.A_log = Param("(g r)", g=g, r=r)
        self.out_proj = Linear("out:m in:(g r v)", m=m, g=g, r=r, v=V, bias=False)
        self.state = State("sequence (g r) k v", g=g, r=r, k=K, v=V, dtype="float32")

    def forward(self, x_Nm: Tensor, cos: Tensor, sin: Tensor, step: Step) -> Tensor:
        q_NGK, k_NGK = (proj(x_Nm).unflatten(1, (GROUPS, K)) for proj in (self.q_proj, self.k_proj))
        x_NHV, dt_NH = self.x_proj(x_Nm).unflatten(1, (HEADS, V)), softplus(self.dt_proj(x_Nm).float())
        v_NGRV = (dt_NH[..., None] * x_NHV.float()).unflatten(1, (GROUPS, REPEATS))
        decay_NH = -self.A_log.float().exp() * dt_NH
        out_NHV = state_space(q_NGK, k_NGK, v_NGRV, decay_NH, self.state, step)
        return self.out_proj(out_NHV.to(x_Nm.dtype).flatten(1))


class StateSpaces(CausalLM):
    def layer(self, config: Any, index: int) -> PreNormLayer:
        m = config.hidden
        return PreNormLayer(m, config.eps, StateSpace(m), GatedMLP(m, config.ffn, config.activation))


@cache
def weights() -> dict[str, np.ndarray]:
    graph, random = StateSpaces(LlamaConfig.from_hf(CONFIG)), np.random.default_rng(0)
    shapes = {name: shape_of(declared.axes) for name, declared in graph.signature().items()}
    return {name: (random.standard_normal(shape) * 0.4).astype(np.float32) for name, shape in shapes.items()}


@cache
def job(dtype: str = "float32") -> Job:
    """The model with random weights."""
    return job_of(StateSpaces(LlamaConfig.from_hf(CONFIG), dtype), weights())


def by_hand(tokens: list[int]) -> np.ndarray:
    """The logits of all tokens of one sequence, token by token in float64."""
    given = {name: array.astype(np.float64) for name, array in weights().items()}

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS) * given[name]

    x = given["model.embed_tokens.weight"][tokens]
    for layer in range(LAYERS):
        own = {name.split(f".{layer}.", 1)[1]: array for name, array in given.items() if f".{layer}." in name}
        mixer = {name.removeprefix("self_attn."): array for name, array in own.items() if name.startswith("self_attn")}
        x = x + _mixed(norm(x, f"model.layers.{layer}.input_layernorm.weight"), mixer)
        y = norm(x, f"model.layers.{layer}.post_attention_layernorm.weight")
        gate, up = y @ own["mlp.gate_proj.weight"].T, y @ own["mlp.up_proj.weight"].T
        x = x + (gate / (1 + np.exp(-gate)) * up) @ own["mlp.down_proj.weight"].T
    return norm(x, "model.norm.weight") @ given["lm_head.weight"].T


def _mixed(x: np.ndarray, own: dict[str, np.ndarray]) -> np.ndarray:
    of_group = np.arange(HEADS) // REPEATS
    q, k = ((x @ own[f"{name}_proj.weight"].T).reshape(-1, GROUPS, K)[:, of_group] for name in "qk")
    dt = np.log1p(np.exp(x @ own["dt_proj.weight"].T))
    value = (x @ own["x_proj.weight"].T).reshape(-1, HEADS, V) * dt[..., None]
    state, results = np.zeros((HEADS, K, V)), []
    for n in range(len(x)):
        state = np.exp(-np.exp(own["A_log"]) * dt[n])[:, None, None] * state + k[n][..., None] * value[n][:, None]
        results.append((q[n][..., None] * state).sum(1).ravel())
    return np.stack(results) @ own["out_proj.weight"].T
