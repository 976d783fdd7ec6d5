"""Graphs that differ from the model although every name and shape fits."""

from __future__ import annotations

from tests.check.mutations.mutation import Mutation, Trial

GEMMAS = """
class OnePlus(RMSNorm):
    def forward(self, x):
        return super().forward(x) * (1 + 1 / self.weight)


class OtherLayer(PreNormLayer):
    def __init__(self, m, eps, attention, mlp):
        super().__init__(m, eps, attention, mlp)
        self.input_layernorm = OnePlus(m, eps)


class Llama(CausalLM):
"""
IN_PAIRS = """
class OtherAttention(GroupedAttention):
    def forward(self, x, cos, sin, step):
        q, k, v = (each(x).unflatten(1, (-1, self.head_dim)) for each in (self.q_proj, self.k_proj, self.v_proj))
        keys, values = self.cache(step, rope(k, cos, sin, interleaved=True), v)
        q = rope(q, cos, sin, interleaved=True)
        return self.o_proj(attention(q, keys, values, step, self.scale, self.window).flatten(1))


class Llama(CausalLM):
"""


def norm_off_by_one(trial: Trial) -> None:
    """Gemma's norm, whose weights are kept less one."""
    trial.edit_graph("import GatedMLP\n", "import GatedMLP\nfrom bringup.graphs.layers.norm import RMSNorm\n")
    trial.edit_graph("class Llama(CausalLM):\n", GEMMAS)
    trial.edit_graph("return PreNormLayer(", "return OtherLayer(")


def rope_in_pairs(trial: Trial) -> None:
    """Turns channels 0 and 1 together, as Meta's code does, where the file has 0 and d / 2 as a pair."""
    ops = "from bringup.graphs.ops.attention import attention\nfrom bringup.graphs.ops.rotary import rope\n"
    trial.edit_graph("import GatedMLP\n", f"import GatedMLP\n{ops}")
    trial.edit_graph("class Llama(CausalLM):\n", IN_PAIRS)
    trial.edit_graph("attention = GroupedAttention(", "attention = OtherAttention(")


GRAPHS = (
    Mutation(
        key="norm-off-by-one",
        title="The graph's first norm multiplies by 1 + weight",
        pain=2,
        seen="vllm#53114",
        base="llama",
        spoil=norm_off_by_one,
        code="BU701",
        names="model.layers.0.input_layernorm",
        phase="verify",
        in_max=(
            ("import LayerNorm, RMSNorm", "import GemmaRMSNorm, LayerNorm, RMSNorm"),
            ("self.input_layernorm, self.self_attn = RMSNorm(", "self.input_layernorm, self.self_attn = GemmaRMSNorm("),
        ),
    ),
    Mutation(
        key="rope-in-pairs",
        title="The graph's RoPE rotates adjacent channels",
        pain=2,
        seen="llama.cpp#3364, llama2.c#286",
        base="llama",
        spoil=rope_in_pairs,
        code="BU701",
        names="model.layers.0.self_attn",
        phase="verify",
    ),
)
