# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Where ranks exchange tensors: around the layers whose parameters they divide.

| layer | divided axis | exchange |
|---|---|---|
| `Linear` | in `in` | its results are summed |
| `Linear` | `vocab` in `out` | its results are concatenated, and padding is removed |
| `Embedding` | `vocab` | rows of other ranks are zero; the results are summed |
| `Experts` | `e` or `f` | experts of other ranks have weight 0; the results are summed |
| `CausalConv` | that of its channels | none: each channel is convolved alone |
| a norm over all heads | that of its input | inputs are concatenated, and each rank takes its part of the result |

The first two are the row- and column-parallel layers of Shoeybi et al. 2019 (Megatron-LM, section 3). A vector that is
divided, such as a sink of each head, needs no exchange.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from bringup.adapters.apply.parallel import Parallel, Rank
from bringup.adapters.apply.rank_plan import VOCAB, Stages, experts_of
from bringup.adapters.planning.plan import Plan
from bringup.compile.ranks.exchange import Exchange
from bringup.diagnostics import BringupError, fail
from bringup.graphs.core.axes import Axis, show
from bringup.graphs.core.signature import Declared
from bringup.graphs.layers.causal_conv import CausalConv
from bringup.graphs.layers.embedding import Embedding
from bringup.graphs.layers.linear import Linear
from bringup.graphs.layers.moe_experts import Experts
from bringup.graphs.layers.norm import LayerNorm, RMSNorm


@dataclass(frozen=True)
class Communication:
    """The exchanges of one rank. `whole` is the plan of the undivided graph, `own` that of the rank."""

    exchange: Exchange
    parallel: Parallel
    rank: Rank
    whole: Plan
    own: Plan
    stages: Stages
    places: set[str] = field(default_factory=set[str])
    called: set[str] = field(default_factory=set[str])

    @property
    def group(self) -> range:
        """The tensor-parallel ranks that share attention and dense layers with this one."""
        tp, number = self.parallel.tp, self.rank.number
        return range(number // tp * tp, number // tp * tp + tp)

    def register(self, module: Any) -> None:
        """Adds the exchanges to a module and to all below it. Raises BU712 for a divided matrix of another layer."""
        for name, part in module.named_modules():
            parameters = {f"{name}.{leaf}" if name else leaf for leaf, _ in part.named_parameters(recurse=False)}
            divided = [self.whole.signature[each] for each in sorted(parameters) if self._is_divided(each)]
            match part:
                case Experts():
                    self._experts(part, name)
                case Embedding():
                    if divided:
                        self._rows(part, name)
                case RMSNorm() | LayerNorm():
                    self._norm(part, name)
                case Linear():
                    self._product(part, name, divided)
                case CausalConv():
                    pass
                case _:
                    if matrix := next((each for each in divided if len(each.axes) > 1), None):
                        raise _unknown(matrix, name, "is a parameter of another layer")

    def check_exchanges(self) -> None:
        """Raises BU712 for a layer whose results are summed or concatenated, and whose forward was not called."""
        for name in sorted(self.places - self.called):
            matrix = self.whole.signature[f"{name}.weight"]
            raise _unknown(matrix, name, f"is read without a call of `{name}`")

    def _is_divided(self, name: str) -> bool:
        whole, own = self.whole.signature.get(name), self.own.signature.get(name)
        return whole is not None and own is not None and _shape(whole) != _shape(own)

    def _sum(self, name: str, tensor: Tensor) -> Tensor:
        return self.exchange.sum(self.rank.number, name, tensor, self.group)

    def _product(self, part: Any, name: str, divided: Sequence[Declared]) -> None:
        changed = {axis.name: axis for each in divided for axis in self._changed(each)}
        is_sum = "in" in changed
        if not is_sum and not ("out" in changed and VOCAB in _names(changed["out"])):
            return
        self.places.add(name)

        def exchanged(_part: Any, _inputs: Any, result: Tensor) -> Tensor:
            self.called.add(name)
            if is_sum:
                return self._sum(name, result)
            parts = self.exchange.gather(self.rank.number, name, result, self.group)
            return torch.cat(parts, -1)[..., : changed["out"].size]

        part.register_forward_hook(exchanged)

    def _changed(self, declared: Declared) -> list[Axis]:
        own = self.own.signature[declared.name]
        return [axis for axis, other in zip(declared.axes, own.axes, strict=True) if axis.size != other.size]

    def _rows(self, part: Any, name: str) -> None:
        forward: Callable[[Tensor], Tensor] = part.forward
        count = part.weight.shape[0]
        first = self.rank.tp * count

        def rows_of_rank(rows_N: Tensor) -> Tensor:
            own_N = (rows_N >= first) & (rows_N < first + count)
            found_Nm = forward((rows_N - first).where(own_N, 0))
            return self._sum(name, found_Nm * own_N[:, None])

        part.forward = rows_of_rank

    def _experts(self, part: Any, name: str) -> None:
        forward: Callable[[Tensor, Tensor, Tensor], Tensor] = part.forward
        parameter = f"{name}.down_proj"
        physical = experts_of(self.whole.entries[parameter], parameter, self.parallel, self.stages)
        part.count = len(physical) // self.parallel.ep
        first, everyone = self.rank.ep * part.count, range(self.parallel.stage_ranks)
        copies = [[at for at, each in enumerate(physical) if each == expert] for expert in range(max(physical) + 1)]
        most = max(map(len, copies))
        place_EC = torch.tensor([[of[number % len(of)] - first for number in range(most)] for of in copies])

        def experts_of_rank(x_Nm: Tensor, selected_NK: Tensor, weights_NK: Tensor) -> Tensor:
            """Tokens alternate between the copies of an expert."""
            copy_N = torch.arange(len(selected_NK)) % most
            place_NK = place_EC[selected_NK, copy_N[:, None]]
            own_NK = (place_NK >= 0) & (place_NK < part.count)
            found_Nm = forward(x_Nm, place_NK.where(own_NK, 0), weights_NK * own_NK)
            return self.exchange.sum(self.rank.number, name, found_Nm, everyone)

        part.forward = experts_of_rank

    def _norm(self, part: Any, name: str) -> None:
        forward, size = part.forward, part.weight.shape[-1]

        def norm_of_all(x: Tensor) -> Tensor:
            if x.shape[-1] == size:
                return forward(x)
            parts = self.exchange.gather(self.rank.number, name, x, self.group)
            copies = len(parts) * x.shape[-1] // size  # of key heads that several ranks have
            normed = forward(torch.cat(parts[::copies], -1))
            return normed.chunk(len(parts) // copies, -1)[self.rank.tp // copies]

        part.forward = norm_of_all


def _shape(declared: Declared) -> tuple[int, ...]:
    return tuple(axis.size for axis in declared.axes)


def _names(axis: Axis) -> set[str]:
    return {node.name for node in axis.walk()}


def _unknown(matrix: Declared, module: str, how: str) -> BringupError:
    message = f"ranks divide `{matrix.name}` (`{show(matrix.axes)}`), which {how}: where they exchange is not known"
    layers = "Linear, Embedding, Experts and CausalConv"
    help = f"use {layers}, whose forward is called; or give the axis a name that ranks do not divide"
    return fail("BU712", message, help=help, parameter=module)
