"""The part of each rank, written in numpy after SGLang's layers: one function for each kind of parameter.

Rules: python/sglang/srt/layers/linear.py (ColumnParallelLinear, MergedColumnParallelLinear, QKVParallelLinear,
RowParallelLinear), vocab_parallel_embedding.py (zeros after the last row), ep_moe (complete experts), and the stages of
distributed/utils.py. No code of bringup is used.
"""

from __future__ import annotations

import numpy as np

Arrays = dict[str, np.ndarray]


def column(w: np.ndarray, rank: int, ranks: int) -> np.ndarray:
    size = w.shape[0] // ranks
    return w[rank * size : (rank + 1) * size]


def row(w: np.ndarray, rank: int, ranks: int) -> np.ndarray:
    size = w.shape[1] // ranks
    return w[:, rank * size : (rank + 1) * size]


def key_heads(w: np.ndarray, rank: int, ranks: int, heads: int) -> np.ndarray:
    """QKVParallelLinear: with fewer key heads than ranks, neighbours have the same head."""
    dim = w.shape[0] // heads
    if ranks >= heads:
        replicas = ranks // heads
        head = rank // replicas
        return w[head * dim : (head + 1) * dim]
    return column(w, rank, ranks)


def row_bias(b: np.ndarray, rank: int) -> np.ndarray:
    return b if rank == 0 else np.zeros_like(b)


def vocabulary(w: np.ndarray, rank: int, ranks: int, multiple: int = 1) -> np.ndarray:
    step = np.lcm(ranks, multiple)
    padded = np.zeros((-(-len(w) // step) * step, *w.shape[1:]), w.dtype)
    padded[: len(w)] = w
    return column(padded, rank, ranks)


def experts(stacked: np.ndarray, physical: list[int], rank: int, ranks: int) -> np.ndarray:
    """Whole experts, by the logical number behind each physical one."""
    each = len(physical) // ranks
    return np.stack([stacked[logical] for logical in physical[rank * each : (rank + 1) * each]])


def stage_of(layer: int, layers: int, stages: int) -> int:
    """numpy.array_split's division: the first stages have one more."""
    return next(k for k, part in enumerate(np.array_split(np.arange(layers), stages)) if layer in part)


def llama(tensors: Arrays, rank: int, *, tp: int, pp: int, heads: int, layers: int, multiple: int = 1) -> Arrays:
    """A rank of a Llama with biases; `heads` are key heads."""
    stage, at = divmod(rank, tp)
    held: Arrays = {}
    for name, w in tensors.items():
        if name.startswith("model.layers."):
            if stage_of(int(name.split(".")[2]), layers, pp) != stage:
                continue
        elif (stage != 0) if "embed_tokens" in name else (stage != pp - 1):
            continue
        if "q_proj" in name or "gate_proj" in name or "up_proj" in name:
            held[name] = column(w, at, tp)
        elif "k_proj" in name or "v_proj" in name:
            held[name] = key_heads(w, at, tp, heads)
        elif "o_proj" in name or "down_proj" in name:
            held[name] = row(w, at, tp) if w.ndim == 2 else row_bias(w, at)
        elif "embed_tokens" in name or "lm_head" in name:
            held[name] = vocabulary(w, at, tp, multiple)
        else:
            held[name] = w
    return held


def gpt2(tensors: Arrays, rank: int, *, tp: int) -> Arrays:
    """A rank of GPT-2, whose checkpoint stores [in, out] and q, k and v as one matrix."""
    held: Arrays = {}
    for name, w in tensors.items():
        short = name.removeprefix("transformer.")
        new = f"transformer.{short}"
        w = w.T if w.ndim == 2 and short.startswith("h.") else w
        if "c_attn" in short:  # MergedColumnParallelLinear: a part of q, of k and of v
            held[new] = np.concatenate([column(part, rank, tp) for part in np.split(w, 3)])
        elif "c_fc" in short:
            held[new] = column(w, rank, tp)
        elif "c_proj" in short:
            held[new] = row(w, rank, tp) if w.ndim == 2 else row_bias(w, rank)
        elif short == "wte.weight":
            held[new] = held["lm_head.weight"] = vocabulary(w, rank, tp)
        else:
            held[new] = w
    return held


def mixtral(tensors: Arrays, rank: int, *, tp: int, ep: int, heads: int, physical: list[int]) -> Arrays:
    """A rank of Mixtral on one stage: neighbours of one expert group divide each expert's channels."""
    ranks = max(tp, ep)
    groups = ranks // ep
    at, expert, part = rank % tp, rank // groups, rank % groups
    dense = {name: w for name, w in tensors.items() if ".block_sparse_moe.experts." not in name}
    held = llama(dense, at, tp=tp, pp=1, heads=heads, layers=64)
    held = {name.replace(".block_sparse_moe.gate.", ".mlp.gate."): w for name, w in held.items()}
    layers = 1 + max(int(name.split(".")[2]) for name in tensors if name.startswith("model.layers."))
    count = max(physical) + 1
    for layer in range(layers):
        for ours, theirs in (("gate_proj", "w1"), ("up_proj", "w3"), ("down_proj", "w2")):
            name = f"model.layers.{layer}.block_sparse_moe.experts.{{}}.{theirs}.weight"
            stacked = np.stack([tensors[name.format(e)] for e in range(count)])
            own = experts(stacked, physical, expert, ep)
            cut = [(row if ours == "down_proj" else column)(w, part, groups) for w in own]
            held[f"model.layers.{layer}.mlp.experts.{ours}"] = np.stack(cut)
    return held
