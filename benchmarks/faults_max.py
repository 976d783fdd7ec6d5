"""What MAX says of a GPT-2 folder: the graph on its Python API, fed with the folder's weights.

Run by faults.py with an interpreter that has `max` and `safetensors`: `python faults_max.py FOLDER [--forget NAME]`.
The adapter part is what a user of the API writes: names without `transformer.`, Conv1D weights transposed, those whose
name ends in NAME forgotten.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from max.dtype import DType
from max.experimental import functional as F
from max.experimental.nn import Embedding, Linear, Module, Sequential
from max.experimental.nn.norm import LayerNorm
from max.experimental.tensor import Tensor, TensorType, defaults
from safetensors.numpy import load_file

CONV1D = ("c_attn.weight", "c_proj.weight", "c_fc.weight")


class Attention(Module):
    def __init__(self, m: int, heads: int) -> None:
        self.c_attn, self.c_proj, self.heads = Linear(m, 3 * m), Linear(m, m), heads

    def forward(self, x: Tensor) -> Tensor:
        _, t, m = x.shape
        d = int(m) // self.heads
        q, k, v = (
            part.reshape((1, t, self.heads, d)).transpose(1, 2) for part in F.split(self.c_attn(x), [int(m)] * 3, -1)
        )
        scores = q @ k.transpose(2, 3) / d**0.5
        never = F.broadcast_to(Tensor(float("-inf"), dtype=x.dtype, device=x.device), (t, t))
        weights = F.softmax(scores + F.band_part(never, num_lower=None, num_upper=0, exclude=True))
        return self.c_proj((weights @ v).transpose(1, 2).reshape((1, t, m)))


class MLP(Module):
    def __init__(self, m: int, f: int) -> None:
        self.c_fc, self.c_proj = Linear(m, f), Linear(f, m)

    def forward(self, x: Tensor) -> Tensor:
        return self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))


class Block(Module):
    def __init__(self, m: int, heads: int, f: int) -> None:
        self.ln_1, self.attn, self.ln_2, self.mlp = LayerNorm(m), Attention(m, heads), LayerNorm(m), MLP(m, f)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT2(Module):
    """The head is tied unless the config says otherwise."""

    def __init__(self, config: dict[str, Any]) -> None:
        m, vocab = config["n_embd"], config["vocab_size"]
        f = config.get("n_inner") or 4 * m
        self.wte, self.wpe = Embedding(vocab, dim=m), Embedding(config["n_positions"], dim=m)
        self.h = Sequential(*(Block(m, config["n_head"], f) for _ in range(config["n_layer"])))
        self.ln_f = LayerNorm(m)
        if not config.get("tie_word_embeddings", True):
            self.lm_head = Linear(m, vocab, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        places = F.range(0, tokens.shape[1], 1, out_dim=tokens.shape[1], device=tokens.device, dtype=DType.int64)
        x = self.ln_f(self.h(self.wte(tokens) + self.wpe(places)))
        return self.lm_head(x) if hasattr(self, "lm_head") else x @ self.wte.weight.T


def main(folder: Path, forgotten: str) -> None:
    config = json.loads((folder / "config.json").read_text("utf-8"))
    weights: dict[str, Any] = {}
    for name, array in load_file(folder / "model.safetensors").items():
        is_stored_turned = name.endswith(CONV1D) and not (forgotten and name.endswith(forgotten))
        turned = array.T if is_stored_turned else array
        weights[name.removeprefix("transformer.")] = np.ascontiguousarray(turned)
    device = defaults()[1].devices[0]
    with F.lazy():
        model = GPT2(config)
    run = model.compile(TensorType(DType.int64, [1, "t"], device=device), weights=weights)
    tokens = np.arange(12, dtype=np.int64)[None]
    logits = np.from_dlpack(run(Tensor(tokens, dtype=DType.int64, device=device)).to_numpy())
    np.save(folder / "logits.npy", logits)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[3] if sys.argv[2:3] == ["--forget"] else "")
