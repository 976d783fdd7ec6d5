from __future__ import annotations

from typing import TYPE_CHECKING

from bringup.graphs.core.module import Module
from bringup.graphs.layers.linear import Linear
from bringup.graphs.layers.moe_experts import Experts
from bringup.graphs.ops.moe_routing import top_experts

if TYPE_CHECKING:
    from torch import Tensor


class SparseMLP(Module):
    """Routes every token to the experts with the highest scores, by softmax in float32 (Jiang et al. 2024, §2.1).

    `normalise`: the weights of the selected experts add up to 1.
    """

    def __init__(self, e: int, m: int, f: int, activation: str, *, per_token: int, normalise: bool) -> None:
        super().__init__()
        self.per_token, self.normalise = per_token, normalise
        self.gate = Linear("out:e in:m", e=e, m=m, bias=False)
        self.experts = Experts(e, m, f, activation)

    def forward(self, x_Nm: Tensor) -> Tensor:
        shares_NE = self.gate(x_Nm).float().softmax(-1)
        selected_NK, weights_NK = top_experts(shares_NE, self.per_token)
        if self.normalise:
            weights_NK = weights_NK / weights_NK.sum(-1, keepdim=True)
        return self.experts(x_Nm, selected_NK, weights_NK)
