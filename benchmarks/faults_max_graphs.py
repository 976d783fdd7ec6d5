"""GPT-2 and Llama in MAX's Python API, as users write them. Names are those of the checkpoint, less the first part."""

from __future__ import annotations

from typing import Any

from max.dtype import DType
from max.experimental import functional as F
from max.experimental.nn import Embedding, Linear, Module, ModuleList, Sequential
from max.experimental.nn.norm import LayerNorm, RMSNorm
from max.experimental.tensor import Tensor


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention of [1, heads, t, d]; gives [1, t, heads · d]."""
    _, heads, t, d = q.shape
    never = F.broadcast_to(Tensor(float("-inf"), dtype=q.dtype, device=q.device), (t, t))
    hidden = F.band_part(never, num_lower=None, num_upper=0, exclude=True)
    mixed = F.softmax(q @ k.transpose(2, 3) / int(d) ** 0.5 + hidden) @ v
    return mixed.transpose(1, 2).reshape((1, t, int(heads) * int(d)))


def places(tokens: Tensor) -> Tensor:
    t = tokens.shape[1]
    return F.range(0, t, 1, out_dim=t, device=tokens.device, dtype=DType.int64)


class GPT2Attention(Module):
    def __init__(self, m: int, heads: int) -> None:
        self.c_attn, self.c_proj, self.heads = Linear(m, 3 * m), Linear(m, m), heads

    def forward(self, x: Tensor) -> Tensor:
        _, t, m = x.shape
        parts = F.split(self.c_attn(x), [int(m)] * 3, -1)
        q, k, v = (part.reshape((1, t, self.heads, int(m) // self.heads)).transpose(1, 2) for part in parts)
        return self.c_proj(attend(q, k, v))


class GPT2MLP(Module):
    def __init__(self, m: int, f: int) -> None:
        self.c_fc, self.c_proj = Linear(m, f), Linear(f, m)

    def forward(self, x: Tensor) -> Tensor:
        return self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))


class GPT2Block(Module):
    def __init__(self, m: int, heads: int, f: int) -> None:
        self.ln_1, self.attn = LayerNorm(m), GPT2Attention(m, heads)
        self.ln_2, self.mlp = LayerNorm(m), GPT2MLP(m, f)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT2(Module):
    """The head is tied unless the config states otherwise."""

    root = "transformer."
    conv1d = ("c_attn.weight", "c_proj.weight", "c_fc.weight")  # stored [in, out]

    def __init__(self, config: dict[str, Any]) -> None:
        m, vocab = config["n_embd"], config["vocab_size"]
        f = config.get("n_inner") or 4 * m
        self.wte, self.wpe = Embedding(vocab, dim=m), Embedding(config["n_positions"], dim=m)
        self.h = Sequential(*(GPT2Block(m, config["n_head"], f) for _ in range(config["n_layer"])))
        self.ln_f = LayerNorm(m)
        if not config.get("tie_word_embeddings", True):
            self.lm_head = Linear(m, vocab, bias=False)

    def hidden(self, tokens: Tensor) -> Tensor:
        return self.ln_f(self.h(self.wte(tokens) + self.wpe(places(tokens))))

    def head(self, x: Tensor) -> Tensor:
        return self.lm_head(x) if hasattr(self, "lm_head") else x @ self.wte.weight.T

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.hidden(tokens))


class LlamaAttention(Module):
    def __init__(self, config: dict[str, Any]) -> None:
        m, self.heads, self.shared = (
            config[key] for key in ("hidden_size", "num_attention_heads", "num_key_value_heads")
        )
        self.dim = config.get("head_dim") or m // self.heads
        self.theta = config["rope_parameters"]["rope_theta"]
        assert config["rope_parameters"]["rope_type"] == "default", config["rope_parameters"]
        self.q_proj, self.o_proj = (
            Linear(m, self.heads * self.dim, bias=False),
            Linear(self.heads * self.dim, m, bias=False),
        )
        self.k_proj, self.v_proj = (Linear(m, self.shared * self.dim, bias=False) for _ in "kv")

    def forward(self, x: Tensor, places: Tensor) -> Tensor:
        t, d = x.shape[1], self.dim
        turns = [self.theta ** (-2 * i / d) for i in range(d // 2)]
        angles = places.cast(x.dtype).reshape((t, 1)) * Tensor(turns, dtype=x.dtype, device=x.device)
        cos, sin = (f(F.concat([angles, angles], -1)) for f in (F.cos, F.sin))

        def split(y: Tensor, heads: int) -> Tensor:
            return y.reshape((1, t, heads, d)).transpose(1, 2)

        def turned(y: Tensor) -> Tensor:
            low, high = F.split(y, [d // 2, d // 2], -1)
            return y * cos + F.concat([-high, low], -1) * sin

        def repeated(y: Tensor) -> Tensor:
            each = [part for part in F.split(y, [1] * self.shared, 1) for _ in range(self.heads // self.shared)]
            return F.concat(each, 1)

        q, k = turned(split(self.q_proj(x), self.heads)), turned(split(self.k_proj(x), self.shared))
        return self.o_proj(attend(q, repeated(k), repeated(split(self.v_proj(x), self.shared))))


class LlamaMLP(Module):
    def __init__(self, m: int, f: int) -> None:
        self.gate_proj, self.up_proj = (Linear(m, f, bias=False) for _ in "gu")
        self.down_proj = Linear(f, m, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class LlamaLayer(Module):
    def __init__(self, config: dict[str, Any]) -> None:
        m, eps = config["hidden_size"], config["rms_norm_eps"]
        self.input_layernorm, self.self_attn = RMSNorm(m, eps), LlamaAttention(config)
        self.post_attention_layernorm, self.mlp = RMSNorm(m, eps), LlamaMLP(m, config["intermediate_size"])

    def forward(self, x: Tensor, places: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), places)
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(Module):
    """The head is tied where the config states so."""

    root = "model."
    conv1d = ()

    def __init__(self, config: dict[str, Any]) -> None:
        m, vocab = config["hidden_size"], config["vocab_size"]
        self.embed_tokens = Embedding(vocab, dim=m)
        self.layers = ModuleList([LlamaLayer(config) for _ in range(config["num_hidden_layers"])])
        self.norm = RMSNorm(m, config["rms_norm_eps"])
        if not config.get("tie_word_embeddings", False):
            self.lm_head = Linear(m, vocab, bias=False)

    def hidden(self, tokens: Tensor) -> Tensor:
        x, where = self.embed_tokens(tokens), places(tokens)
        for layer in self.layers:
            x = layer(x, where)
        return self.norm(x)

    def head(self, x: Tensor) -> Tensor:
        return self.lm_head(x) if hasattr(self, "lm_head") else x @ self.embed_tokens.weight.T

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.hidden(tokens))


GRAPHS = {"gpt2": GPT2, "llama": Llama}
