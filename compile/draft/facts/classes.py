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
    "ScaledMLP": '''class ScaledMLP(SparseMLP):
    """Multiplies the sum of the experts."""

    factor = 1.0

    def forward(self, x_Nm):
        return self.factor * super().forward(x_Nm)
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
    "SoftmaxRouter": '''class SoftmaxRouter(SigmoidRouter):
    """Scores by softmax; their sum is at least `least` where weights are divided by it."""

    least = 0.0

    def forward(self, x_Nm):
        scores_NE = linear(x_Nm.float(), self.weight.float()).softmax(-1)
        by_NE = scores_NE + self.e_score_correction_bias
        selected_NK, weights_NK = top_experts(scores_NE, self.routing.per_token, by_NE)
        weights_NK = weights_NK / weights_NK.sum(-1, keepdim=True).clamp(min=self.least)
        return selected_NK, weights_NK
''',
    "ClampedExperts": '''class ClampedExperts(Experts):
    """(up + 1) · gate · sigmoid(alpha · gate), both clamped to a limit."""

    alpha, limit = 1.0, 1.0

    def gated(self, gate, up):
        gate, up = gate.clamp(max=self.limit), up.clamp(-self.limit, self.limit)
        return (up + 1) * gate * (self.alpha * gate).sigmoid()
''',
    "HeadNorm": '''class HeadNorm(Module):
    """Layer normalisation of each head without a bias; each head has its own weight."""

    def __init__(self, heads: int, d: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.heads, self.d = heads, d
        self.weight = Param("(heads d)", heads=heads, d=d)

    def forward(self, x_NHD):
        wide_NHD, weight_HD = x_NHD.float(), self.weight.float().view(self.heads, self.d)
        normed_NHD = layer_norm(wide_NHD, wide_NHD.new_ones(self.d), wide_NHD.new_zeros(self.d), self.eps)
        return (normed_NHD * weight_HD).to(x_NHD.dtype)
''',
    "OnePlusLayerNorm": '''class OnePlusLayerNorm(LayerNorm):
    """Layer normalisation that multiplies by 1 + weight."""

    def forward(self, x):
        return layer_norm(x, self.weight + 1.0, self.bias, self.eps)
''',
    "NormedMLP": '''class NormedMLP(GatedMLP):
    """A norm before the last matrix."""

    def __init__(self, m: int, f: int, activation: str, *, bias: bool, norm, eps: float) -> None:
        super().__init__(m, f, activation, bias=bias)
        self.norm = norm(f, eps)

    def forward(self, x_Nm):
        gated = ACTIVATIONS[self.activation](self.gate_proj(x_Nm)) * self.up_proj(x_Nm)
        return self.down_proj(self.norm(gated))
''',
}
# Of these, the classes of layers, by the position of the norms.
PARALLEL_LAYERS = {"parallel": "ParallelLayer", "parallel two": "TwoNormLayer"}
