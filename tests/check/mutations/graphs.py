"""Graphs that compute something else than the model did. Every name and shape fits."""

from __future__ import annotations

from tests.check.mutations.mutation import Mutation, Trial


def norm_off_by_one(trial: Trial) -> None:
    """Gemma's norm, whose weights are kept less one."""
    trial.edit_graph(
        "class Layer(Module):",
        "class OnePlus(RMSNorm):\n    def forward(self, x):\n"
        "        return super().forward(x) * (1 + 1 / self.weight)\n\n\n"
        "class Layer(Module):",
    )
    trial.edit_graph("self.input_layernorm = RMSNorm(", "self.input_layernorm = OnePlus(")


def rope_in_pairs(trial: Trial) -> None:
    """Turns channels 0 and 1 together, as Meta's code does, where the file has 0 and d / 2 as a pair."""
    trial.edit_graph(
        "class Attention(Module):",
        "def paired(x, cos, sin):\n"
        "    halves = x.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)\n"
        "    return rope(halves, cos, sin).unflatten(-1, (2, -1)).transpose(-1, -2).flatten(-2)\n\n\n"
        "class Attention(Module):",
    )
    trial.edit_graph("rope(k_NGD, cos, sin)", "paired(k_NGD, cos, sin)")
    trial.edit_graph("rope(q_NHD, cos, sin)", "paired(q_NHD, cos, sin)")


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
        title="The graph's rope turns neighbouring channels",
        pain=2,
        seen="llama.cpp#3364, llama2.c#286",
        base="llama",
        spoil=rope_in_pairs,
        code="BU701",
        names="model.layers.0.self_attn",
        phase="verify",
    ),
)
