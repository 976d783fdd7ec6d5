"""The text of classes that a drafted graph needs and the public parts lack."""

from __future__ import annotations

# Classes that the public parts lack and a draft defines.
CLASSES = {
    "ScaleNorm": '''class ScaleNorm(Module):
    """Layer normalisation without a bias."""

    def __init__(self, m: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = Param("m", m=m)

    def forward(self, x):
        return layer_norm(x, self.weight, self.weight.new_zeros(self.weight.shape), self.eps)
''',
    "PlainNorm": '''class PlainNorm(Module):
    """Layer normalisation without weight and bias."""

    def __init__(self, m: int, eps: float) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, x):
        return layer_norm(x, x.new_ones(x.shape[-1]), x.new_zeros(x.shape[-1]), self.eps)
''',
    "ParallelLayer": '''class ParallelLayer(Module):
    """x + attention(norm(x)) + mlp(norm(x)): one norm for both."""

    def __init__(self, m: int, eps: float, attention: Module, mlp: Module, *, norm) -> None:
        super().__init__()
        self.input_layernorm = norm(m, eps)
        self.self_attn = attention
        self.mlp = mlp

    def forward(self, x_Nm, cos, sin, step):
        normed_Nm = self.input_layernorm(x_Nm)
        return x_Nm + self.self_attn(normed_Nm, cos, sin, step) + self.mlp(normed_Nm)
''',
    "TwoNormLayer": '''class TwoNormLayer(Module):
    """x + attention(norm(x)) + mlp(norm(x)): a norm for each."""

    def __init__(self, m: int, eps: float, attention: Module, mlp: Module, *, norm) -> None:
        super().__init__()
        self.input_layernorm = norm(m, eps)
        self.post_attention_layernorm = norm(m, eps)
        self.self_attn = attention
        self.mlp = mlp

    def forward(self, x_Nm, cos, sin, step):
        attended_Nm = self.self_attn(self.input_layernorm(x_Nm), cos, sin, step)
        return x_Nm + attended_Nm + self.mlp(self.post_attention_layernorm(x_Nm))
''',
    "SharedMLP": '''class SharedMLP(SparseMLP):
    """Adds an expert that computes every token."""

    def __init__(self, e: int, m: int, f: int, shared: int, activation: str, *, per_token: int, normalise: bool):
        super().__init__(e, m, f, activation, per_token=per_token, normalise=normalise)
        self.shared = GatedMLP(m, shared, activation)

    def forward(self, x_Nm):
        return super().forward(x_Nm) + self.shared(x_Nm)
''',
    "GatedSharedMLP": '''class GatedSharedMLP(SparseMLP):
    """Adds an expert that computes every token, weighted by the sigmoid of a gate."""

    def __init__(self, e: int, m: int, f: int, shared: int, activation: str, *, per_token: int, normalise: bool):
        super().__init__(e, m, f, activation, per_token=per_token, normalise=normalise)
        self.shared = GatedMLP(m, shared, activation)
        self.shared_gate = Linear("out:s in:m", s=1, m=m, bias=False)

    def forward(self, x_Nm):
        return super().forward(x_Nm) + self.shared_gate(x_Nm).sigmoid() * self.shared(x_Nm)
''',
    "SigmoidMLP": '''class SigmoidMLP(Module):
    """Routes every token to experts by sigmoid scores, to which a learned bias is added for the selection."""

    def __init__(self, m: int, f: int, activation: str, routing: RoutingConfig):
        super().__init__()
        self.gate = SigmoidRouter(m, routing)
        self.experts = Experts(routing.experts, m, f, activation)

    def forward(self, x_Nm):
        selected_NK, weights_NK = self.gate(x_Nm)
        return self.experts(x_Nm, selected_NK, weights_NK)
''',
    "SharedSigmoidMLP": '''class SharedSigmoidMLP(SigmoidMLP):
    """Adds an expert that computes every token."""

    def __init__(self, m: int, f: int, shared: int, activation: str, routing: RoutingConfig):
        super().__init__(m, f, activation, routing)
        self.shared = GatedMLP(m, shared, activation)

    def forward(self, x_Nm):
        return super().forward(x_Nm) + self.shared(x_Nm)
''',
    "ScaledLayer": '''class ScaledLayer(PreNormLayer):
    """Both results are multiplied by `scale` before they are added."""

    scale = 1.0

    def forward(self, x_Nm, cos, sin, step):
        x_Nm = x_Nm + self.scale * self.self_attn(self.input_layernorm(x_Nm), cos, sin, step)
        return x_Nm + self.scale * self.mlp(self.post_attention_layernorm(x_Nm))
''',
    "LateNormAttention": '''class LateNormAttention(GroupedAttention):
    """The norms of queries and keys come after rope."""

    def forward(self, x_Nm, cos, sin, step):
        q_NHD, k_NGD, v_NGD = (each(x_Nm).unflatten(1, (-1, self.head_dim)) for each in self.projections())
        q_NHD, k_NGD = self.q_norm(self.turned(q_NHD, cos, sin)), self.k_norm(self.turned(k_NGD, cos, sin))
        keys, values = self.cache(step, k_NGD, v_NGD)
        mixed = attention(
            q_NHD, keys, values, step, self.scale, self.window, ring=self.cache.ring, softcap=self.softcap
        )
        return self.o_proj(mixed.flatten(1))

    def projections(self):
        return self.q_proj, self.k_proj, self.v_proj

    def turned(self, x_NHD, cos, sin):
        return rope(x_NHD, cos, sin)
''',
    "LateNormNoRope": '''class LateNormNoRope(LateNormAttention):
    """Of layers that do not rotate queries and keys."""

    def turned(self, x_NHD, cos, sin):
        return x_NHD
''',
    "NoRopeAttention": '''class NoRopeAttention(GroupedAttention):
    """Of layers that do not rotate queries and keys: the angle is 0 at every position."""

    def forward(self, x_Nm, cos, sin, step):
        return super().forward(x_Nm, cos.new_ones(cos.shape), sin.new_zeros(sin.shape), step)
''',
}
# Of these, the classes of layers, by the position of the norms.
PARALLEL_LAYERS = {"parallel": "ParallelLayer", "parallel two": "TwoNormLayer"}
