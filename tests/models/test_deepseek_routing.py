"""The routers of DeepSeek and LFM2-MoE: the experts and weights of transformers' own, and exactly so many groups."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from transformers import DeepseekV2Config, DeepseekV3Config, Lfm2MoeConfig
from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2TopkRouter
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3TopkRouter
from transformers.models.lfm2_moe.modeling_lfm2_moe import Lfm2MoeTopKRouter
from transformers.models.mistral4 import Mistral4Config
from transformers.models.mistral4.modeling_mistral4 import Mistral4TopkRouter

from bringup.graphs.config.moe import RoutingConfig
from bringup.graphs.core.module import Module
from bringup.graphs.core.step import CacheSizes
from bringup.graphs.core.to_torch import to_torch
from bringup.graphs.deepseek_v2 import BestExpertRouter
from bringup.graphs.layers.moe_shared import SigmoidRouter, SoftmaxRouter
from bringup.graphs.lfm2_moe import Lfm2MoeConfig as OurConfig
from bringup.graphs.ops.moe_routing import keep_best_groups

M, EXPERTS, GROUPS, TOPK_GROUPS, CHOSEN = 7, 20, 5, 2, 4


def routing(normalise: bool) -> RoutingConfig:
    return RoutingConfig(
        experts=EXPERTS, per_token=CHOSEN, groups=GROUPS, topk_groups=TOPK_GROUPS, normalise=normalise, factor=2.5
    )


def dense(router: object, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """[N, E]: what each expert counts for each token."""
    return torch.zeros(len(chosen), EXPERTS).scatter(1, chosen, weights)


def both(ours: Module, theirs: torch.nn.Module, x_Nm: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    module = to_torch(ours, "float32", CacheSizes(context=1))
    for name, value in theirs.state_dict().items():
        module._parameters[name] = torch.nn.Parameter(value, requires_grad=False)
    _, weights, chosen = theirs(x_Nm)
    return dense(module, *module(x_Nm)), dense(theirs, chosen, weights)


@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize("bias", [0.0, -3.0, 3.0])
def test_sigmoid(normalise: bool, bias: float) -> None:
    """Also where the bias makes every score negative, so that a group at 0 would be the best."""
    torch.manual_seed(0)
    config = DeepseekV3Config(
        hidden_size=M, num_attention_heads=1, n_routed_experts=EXPERTS, n_group=GROUPS, topk_group=TOPK_GROUPS,
        num_experts_per_tok=CHOSEN,
        norm_topk_prob=normalise, routed_scaling_factor=2.5,
    )  # fmt: skip
    theirs = DeepseekV3TopkRouter(config)
    theirs.weight.data.normal_()
    theirs.e_score_correction_bias.normal_(bias, 0.3)
    ours, wanted = both(SigmoidRouter(M, routing(normalise)), theirs, torch.randn(200, M))
    assert torch.allclose(ours, wanted, atol=1e-6)
    assert ((ours > 0).sum(1) == CHOSEN).all()


@pytest.mark.parametrize("below", [0.0, 15.0])
def test_sigmoid_of_lfm2(below: float) -> None:
    """Also where scores are as small as what is added to their sum."""
    torch.manual_seed(0)
    config = Lfm2MoeConfig(
        hidden_size=M, num_attention_heads=1, num_experts=EXPERTS, num_experts_per_tok=CHOSEN, use_expert_bias=False,
        routed_scaling_factor=2.5, num_hidden_layers=1, layer_types=["conv"], num_key_value_heads=1, head_dim=8,
    )  # fmt: skip
    theirs = Lfm2MoeTopKRouter(config)
    theirs.weight.data.normal_()
    theirs.weight.data[:, 0] = -below
    x_Nm = torch.randn(200, M)
    x_Nm[:, 0] = 1.0
    routing_of_lfm2 = OurConfig.from_hf(config.to_dict()).routing
    ours, wanted = both(SigmoidRouter(M, routing_of_lfm2), theirs, x_Nm)
    assert torch.allclose(ours, wanted, atol=1e-6)


@pytest.mark.parametrize("spread", [1.0, 60.0])
def test_softmax(spread: float) -> None:
    """Also where most scores are 0 in float32, and so many groups equally good."""
    torch.manual_seed(0)
    config = DeepseekV2Config(
        hidden_size=M, num_attention_heads=1, n_routed_experts=EXPERTS, n_group=GROUPS, topk_group=TOPK_GROUPS,
        num_experts_per_tok=CHOSEN,
        topk_method="group_limited_greedy", routed_scaling_factor=2.5,
    )  # fmt: skip
    theirs = DeepseekV2TopkRouter(config)
    theirs.weight.data.normal_(0, spread)
    settings = replace(routing(False), bias=False)
    ours, wanted = both(BestExpertRouter(M, settings), theirs, torch.randn(200, M))
    assert torch.allclose(ours, wanted, atol=1e-6)


@pytest.mark.parametrize("normalise", [True, False])
def test_softmax_of_mistral4(normalise: bool) -> None:
    torch.manual_seed(0)
    config = Mistral4Config(
        hidden_size=M, n_routed_experts=EXPERTS, n_group=GROUPS, topk_group=TOPK_GROUPS, num_experts_per_tok=CHOSEN,
        norm_topk_prob=normalise, routed_scaling_factor=2.5,
    )  # fmt: skip
    theirs = Mistral4TopkRouter(config)
    theirs.weight.data.normal_()
    settings = replace(routing(normalise), bias=False)
    ours, wanted = both(SoftmaxRouter(M, settings), theirs, torch.randn(200, M))
    assert torch.allclose(ours, wanted, atol=1e-6)


def test_groups_that_are_as_good_are_not_all_chosen() -> None:
    is_chosen = keep_best_groups(torch.zeros(3, EXPERTS), GROUPS, TOPK_GROUPS, best=2).isfinite()
    assert (is_chosen.view(3, GROUPS, -1).all(-1).sum(-1) == TOPK_GROUPS).all()
    assert (is_chosen.sum(-1) == TOPK_GROUPS * EXPERTS // GROUPS).all()
