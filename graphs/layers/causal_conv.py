from __future__ import annotations

from typing import TYPE_CHECKING

from bringup.graphs.core.axes import parse, show
from bringup.graphs.core.module import Module, Param, State
from bringup.graphs.ops.recurrent.causal_conv import causal_conv

if TYPE_CHECKING:
    from torch import Tensor

    from bringup.graphs.core.step import Step


class CausalConv(Module):
    """A convolution of `taps` tokens, its kernel size, for each channel. `channels` are their axes: "m", "(h c)".

    CausalConv("(h c)", taps=4, h=16, c=512)
    """

    def __init__(self, channels: str, *, taps: int, bias: bool = False, **sizes: int) -> None:
        super().__init__()
        (axis,) = parse(channels)
        self.weight = Param(f"{show((axis,))} tap", {**sizes, "tap": taps})
        self.bias = Param(channels, sizes) if bias else None
        self.state = State(f"sequence before {channels}", {**sizes, "before": taps - 1})

    def forward(self, x_NC: Tensor, step: Step) -> Tensor:
        return causal_conv(x_NC, self.weight, self.state, self.bias, step)
