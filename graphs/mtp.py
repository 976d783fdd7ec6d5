"""What drafts with a multi-token-prediction (MTP) layer share: each row reads a token and a hidden state.

N tokens of the step · R rows of logits · m hidden
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from bringup.graphs.config.hf_config import BlockConfig
from bringup.graphs.core.graph import HIDDEN, Graph
from bringup.graphs.core.step import Step
from bringup.graphs.decoder import CausalLM, Decoder, DecoderConfig
from bringup.graphs.layers.linear import Linear

if TYPE_CHECKING:
    from torch import Tensor


class MtpDecoder(Decoder):
    """A decoder with the layers and the class of norms of `main`, and with the parts that join the two inputs."""

    def __init__(self, config: DecoderConfig, main: CausalLM) -> None:
        super().__init__(config, main.model.layers, main.norm)
        m = config.hidden
        self.enorm = main.norm(m, config.eps)
        self.hnorm = main.norm(m, config.eps)
        self.eh_proj = Linear("out:m in:(two m)", two=2, m=m, bias=False)


class Mtp(Graph):
    """The layers of `main`, whose config is `block` of the draft's, and its head. Its input is `hidden`."""

    layer_path = "model.layers"

    def __init__(self, config: BlockConfig, block: DecoderConfig, main: CausalLM) -> None:
        super().__init__(config, main.dtype)
        self.model = MtpDecoder(block, main)
        self.lm_head = main.lm_head
        self.hidden = block.hidden

    @property
    def inputs(self) -> Mapping[str, int]:
        return {HIDDEN: self.hidden}

    def prologue(self, step: Step, *inputs: Tensor) -> tuple[Tensor, ...]:
        import torch

        (hidden_Nm,) = inputs
        model = self.model
        both = torch.cat((model.enorm(model.embed_tokens(step.tokens)), model.hnorm(hidden_Nm)), -1)
        return (model.eh_proj(both), *model.ropes(step))

    def final(self, x_Nm: Tensor) -> Tensor:
        return self.model.norm(x_Nm)

    def epilogue(self, x_Rm: Tensor) -> Tensor:
        return self.lm_head(self.final(x_Rm))
