"""Routing by sigmoid or softmax, and mixtures of experts, with shared experts for every token or without."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

from bringup.graphs.config.moe import RoutingConfig
from bringup.graphs.core.axes import shape_of
from bringup.graphs.core.module import Module, Param
from bringup.graphs.layers.lora import LoraSlots
from bringup.graphs.layers.mlp import GatedMLP
from bringup.graphs.layers.moe_experts import Experts
from bringup.graphs.ops.linear import linear
from bringup.graphs.ops.moe_routing import keep_best_groups, top_experts

if TYPE_CHECKING:
    from torch import Tensor


class SigmoidRouter(Module):
    """(selected_NK, weights_NK) by sigmoid scores in float32 (DeepSeek-V3 report, equations 12 to 16).

    A learned bias is added for the selection only, not to the weights, if the routing has one; the score of a group is
    the sum of its `best`. The weight has the model's dtype, or `dtype`.
    """

    best: ClassVar[int] = 2
    dtype: ClassVar[str | None] = None
    lora_parameters = ("weight",)

    def __init__(self, m: int, routing: RoutingConfig) -> None:
        super().__init__()
        self.routing = routing
        self.weight_lora: LoraSlots | None = None
        self.weight = Param("out:e in:m", e=routing.experts, m=m, dtype=self.dtype)
        self.e_score_correction_bias = Param("e", e=routing.experts, dtype="float32") if routing.bias else None

    def add_lora(self, slots: int, rank: int) -> None:
        """As `Linear.add_lora`."""
        outputs, inputs = shape_of(self.weight.axes)
        self.weight_lora = LoraSlots(slots, rank, inputs, outputs)

    def forward(self, x_Nm: Tensor) -> tuple[Tensor, Tensor]:
        routing = self.routing
        scores_NE = linear(x_Nm.float(), self.weight.float())
        if self.weight_lora is not None:
            scores_NE = self.weight_lora(x_Nm, scores_NE)
        scores_NE = self.scored(scores_NE)
        by_NE = scores_NE if self.e_score_correction_bias is None else scores_NE + self.e_score_correction_bias
        if routing.topk_groups < routing.groups:
            by_NE = keep_best_groups(by_NE, routing.groups, routing.topk_groups, best=self.best)
        selected_NK, weights_NK = top_experts(scores_NE, routing.per_token, by_NE)
        if routing.normalise:
            weights_NK = weights_NK / (weights_NK.sum(-1, keepdim=True) + routing.eps)
        return selected_NK, weights_NK * routing.factor

    def scored(self, logits_NE: Tensor) -> Tensor:
        return logits_NE.sigmoid()


class SoftmaxRouter(SigmoidRouter):
    """By softmax scores. transformers gives experts of other groups score 0; here they cannot be selected. The result
    is the same: no score is negative, and a selected expert with score 0 adds nothing.
    """

    def scored(self, logits_NE: Tensor) -> Tensor:
        return logits_NE.softmax(-1)


class Float32SoftmaxRouter(SoftmaxRouter):
    """With a weight that is float32 in models of any dtype."""

    dtype = "float32"


class Float32SigmoidRouter(SigmoidRouter):
    """With a weight that is float32 in models of any dtype."""

    dtype = "float32"


class Mixture(Module):
    """Routed experts of width f. `router` creates the routing module from the hidden size and the settings."""

    def __init__(
        self,
        m: int,
        f: int,
        activation: str,
        routing: RoutingConfig,
        *,
        router: Callable[[int, RoutingConfig], Module] = SigmoidRouter,
    ) -> None:
        super().__init__()
        self.gate = router(m, routing)
        self.experts = Experts(routing.experts, m, f, activation)

    def forward(self, x_Nm: Tensor) -> Tensor:
        selected_NK, weights_NK = self.gate(x_Nm)
        return self.experts(x_Nm, selected_NK, weights_NK)


class SharedMixture(Mixture):
    """With shared experts for every token: one MLP of width `shared` · f. `bias` is that of this MLP."""

    def __init__(
        self,
        m: int,
        f: int,
        shared: int,
        activation: str,
        routing: RoutingConfig,
        *,
        router: Callable[[int, RoutingConfig], Module] = SigmoidRouter,
        bias: bool = False,
    ) -> None:
        super().__init__(m, f, activation, routing, router=router)
        self.shared_experts = GatedMLP(m, f * shared, activation, bias=bias)

    def forward(self, x_Nm: Tensor) -> Tensor:
        return super().forward(x_Nm) + self.shared_experts(x_Nm)
