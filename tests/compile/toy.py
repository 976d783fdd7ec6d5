"""Two small decoders in the staged form (prologue, layers, epilogue) that `compile/program/trace.py` accepts.

Shape letters: N tokens, D hidden, H query heads, G key/value heads, M = H / G, X = M * N, E head size,
F rope pairs, S cache slots, K visible keys, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bringup.graphs.core.step import BLOCK, Step


def attend(
    q_NHE: Tensor,
    k_NGE: Tensor,
    v_NGE: Tensor,
    cache_k_SGE: Tensor,
    cache_v_SGE: Tensor,
    step: Step,
    window: int | None = None,
) -> Tensor:
    """Writes this step's keys and values; attends over the first P blocks: [N, H * E]."""
    cache_k_SGE.index_copy_(0, step.slots, k_NGE)
    cache_v_SGE.index_copy_(0, step.slots, v_NGE)
    num_keys = step.block_table.shape[1] * BLOCK
    k_KGE, v_KGE = cache_k_SGE[:num_keys], cache_v_SGE[:num_keys]
    n, h, e = q_NHE.shape
    g = k_NGE.shape[1]
    key = torch.arange(num_keys)
    visible_NK = key[None, :] <= step.positions[:, None]
    if window is not None:
        visible_NK = visible_NK & (key[None, :] > step.positions[:, None] - window)
    if step.decode:  # products and sums: IREE would repack the whole cache for a matmul
        q_GME = q_NHE.view(g, h // g, e).float()
        scores_KGM = (k_KGE.float()[:, :, None] * q_GME).sum(-1) * e**-0.5
        probs_KGM = torch.softmax(scores_KGM.masked_fill(~visible_NK[0][:, None, None], float("-inf")), 0)
        return (probs_KGM[..., None] * v_KGE.float()[:, :, None]).sum(0).view(1, h * e).to(q_NHE.dtype)
    q_GXE = q_NHE.view(n, g, h // g, e).permute(1, 2, 0, 3).reshape(g, h // g * n, e)
    scores_HNK = (q_GXE @ k_KGE.permute(1, 2, 0)).view(h, n, num_keys).float() * e**-0.5
    probs_HNK = torch.softmax(scores_HNK.masked_fill(~visible_NK[None], float("-inf")), -1)
    # In float32: IREE 3.13 cannot pack float16 probabilities, and float32 costs no time in bfloat16.
    out_GXE = probs_HNK.view(g, h // g * n, num_keys) @ v_KGE.permute(1, 0, 2).float()
    return out_GXE.view(h, n, e).transpose(0, 1).reshape(n, h * e).to(q_NHE.dtype)


def cache(slots: int, heads: int, size: int) -> Tensor:
    return torch.zeros(slots, heads, size)


class GPTLayer(nn.Module):
    """LayerNorm, fused qkv, GELU; multi-head attention."""

    def __init__(self, d: int, h: int, slots: int) -> None:
        super().__init__()
        self.h = h
        self.ln_1, self.ln_2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.attn, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.fc, self.out = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)
        self.register_buffer("k", cache(slots, h, d // h))
        self.register_buffer("v", cache(slots, h, d // h))

    def forward(self, x_ND: Tensor, step: Step) -> Tensor:
        n, d = x_ND.shape
        q, k, v = self.attn(self.ln_1(x_ND)).view(n, 3, self.h, d // self.h).unbind(1)
        x_ND = x_ND + self.proj(attend(q, k, v, self.k, self.v, step))
        return x_ND + self.out(F.gelu(self.fc(self.ln_2(x_ND)), approximate="tanh"))


class ToyGPT(nn.Module):
    """GPT-2: learned positions, tied head (a separate parameter here)."""

    def __init__(self, layers: int = 2, d: int = 64, h: int = 4, vocab: int = 300, max_seq: int = 256) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, d), nn.Embedding(max_seq, d)
        self.h = nn.ModuleList(GPTLayer(d, h, max_seq + BLOCK) for _ in range(layers))
        self.ln_f, self.lm_head = nn.LayerNorm(d), nn.Linear(d, vocab, bias=False)

    @property
    def layers(self) -> list[nn.Module]:
        return list(self.h)

    def prologue(self, step: Step) -> tuple[Tensor, ...]:
        return (self.wte(step.tokens) + self.wpe(step.positions),)

    def epilogue(self, x_ND: Tensor) -> Tensor:
        return self.lm_head(self.ln_f(x_ND))


class AutocastLayer(GPTLayer):
    """Computes in the dtypes of its tensors, whatever a caller's autocast says: a graph inside the traced graph."""

    def forward(self, x_ND: Tensor, step: Step) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            return super().forward(x_ND, step)


class ToyAutocast(ToyGPT):
    """Changes its states inside a block of autocast."""

    def __init__(self, layers: int = 2, d: int = 64, h: int = 4, vocab: int = 300, max_seq: int = 256) -> None:
        super().__init__(layers, d, h, vocab, max_seq)
        self.h = nn.ModuleList(AutocastLayer(d, h, max_seq + BLOCK) for _ in range(layers))


def rope(x_NHE: Tensor, cos_NF: Tensor, sin_NF: Tensor) -> Tensor:
    a, b = x_NHE.float().chunk(2, -1)
    cos, sin = cos_NF[:, None], sin_NF[:, None]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(x_NHE.dtype)


class RMSNorm(nn.Module):
    def __init__(self, d: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d))

    def forward(self, x: Tensor) -> Tensor:
        y = x.float()
        return (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * self.weight


class LlamaLayer(nn.Module):
    """RMSNorm, grouped-query attention with rope, SwiGLU; head size apart from D / H; an optional window."""

    def __init__(self, d: int, h: int, g: int, e: int, f: int, slots: int, window: int | None) -> None:
        super().__init__()
        self.shape, self.window = (h, g, e), window
        self.norm_1, self.norm_2 = RMSNorm(d), RMSNorm(d)
        self.q, self.kv, self.o = (
            nn.Linear(d, h * e, bias=False),
            nn.Linear(d, 2 * g * e, bias=False),
            nn.Linear(h * e, d, bias=False),
        )
        self.gate, self.up, self.down = (
            nn.Linear(d, f, bias=False),
            nn.Linear(d, f, bias=False),
            nn.Linear(f, d, bias=False),
        )
        self.register_buffer("k", cache(slots, g, e))
        self.register_buffer("v", cache(slots, g, e))

    def forward(self, x_ND: Tensor, cos_NF: Tensor, sin_NF: Tensor, step: Step) -> Tensor:
        h, g, e = self.shape
        y, n = self.norm_1(x_ND), x_ND.shape[0]
        k, v = self.kv(y).view(n, 2, g, e).unbind(1)
        q, k = rope(self.q(y).view(n, h, e), cos_NF, sin_NF), rope(k, cos_NF, sin_NF)
        x_ND = x_ND + self.o(attend(q, k, v, self.k, self.v, step, self.window))
        y = self.norm_2(x_ND)
        return x_ND + self.down(F.silu(self.gate(y)) * self.up(y))


class ToyLlama(nn.Module):
    """Llama with alternating full and windowed layers when `window` is given (two layer kinds)."""

    def __init__(
        self,
        layers: int = 2,
        d: int = 48,
        h: int = 4,
        g: int = 1,
        e: int = 16,
        vocab: int = 300,
        max_seq: int = 256,
        window: int | None = None,
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab, d)
        self.blocks = nn.ModuleList(
            LlamaLayer(d, h, g, e, 3 * d, max_seq + BLOCK, window if i % 2 else None) for i in range(layers)
        )
        self.norm, self.head = RMSNorm(d), nn.Linear(d, vocab, bias=False)
        angle = torch.arange(max_seq)[:, None] * 10000.0 ** (-torch.arange(0, e, 2) / e)
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)

    @property
    def layers(self) -> list[nn.Module]:
        return list(self.blocks)

    def prologue(self, step: Step) -> tuple[Tensor, ...]:
        return self.embed(step.tokens), self.cos[step.positions], self.sin[step.positions]

    def epilogue(self, x_ND: Tensor) -> Tensor:
        return self.head(self.norm(x_ND))


def seeded(make: Callable[[], nn.Module], dtype: torch.dtype) -> nn.Module:
    """A module with seeded weights in `dtype`; rope tables stay float32."""
    torch.manual_seed(0)
    module = make().eval().requires_grad_(False)
    consts = {name for name, _ in module.named_buffers()} - set(module.state_dict())
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if name not in consts:
            tensor.data = tensor.data.to(dtype)
    return module
