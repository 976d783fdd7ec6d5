# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Where ranks exchange tensors: hooks on the modules of a graph, chosen by the axes that the ranks divide.

| module | divided axis | exchange |
|---|---|---|
| one with a parameter `out:… in:…` | in `in` | its results are summed |
| the same | `vocab` in `out` | its results are concatenated, and padding is removed |
| `Embedding` | `vocab` | rows of other ranks are zero; the results are summed |
| `Experts` | `e` or `f` | experts of other ranks have weight 0; the results are summed |
| a norm over all heads | that of its input | inputs are concatenated, and each rank takes its part of the result |

The first two are the row- and column-parallel layers of Shoeybi et al. 2019 (Megatron-LM, section 3).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bringup.adapters.apply.parallel import Parallel, Rank
from bringup.adapters.apply.rank_plan import VOCAB, Stages, experts_of
from bringup.adapters.planning.plan import Plan
from bringup.compile.ranks.exchange import Exchange
from bringup.graphs.core.axes import Axis
from bringup.graphs.core.signature import Declared
from bringup.graphs.layers.embedding import Embedding
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

    @property
    def group(self) -> range:
        """The tensor-parallel ranks that share attention and dense layers with this one."""
        tp, number = self.parallel.tp, self.rank.number
        return range(number // tp * tp, number // tp * tp + tp)

    def register(self, module: Any) -> None:
        """Adds the hooks to a module and to all below it."""
        for name, part in module.named_modules():
            parameters = {f"{name}.{leaf}" if name else leaf for leaf, _ in part.named_parameters(recurse=False)}
            divided = [self.whole.signature[each] for each in sorted(parameters) if self._is_divided(each)]
            match part:
                case Experts():
                    self._experts(part, name)
                case Embedding():
                    if divided:
                        self._rows(part)
                case RMSNorm() | LayerNorm():
                    self._norm(part)
                case _:
                    self._product(part, divided)

    def _is_divided(self, name: str) -> bool:
        whole, own = self.whole.signature.get(name), self.own.signature.get(name)
        return whole is not None and own is not None and _shape(whole) != _shape(own)

    def _sum(self, tensor: Tensor) -> Tensor:
        return self.exchange.sum(self.rank.number, tensor, self.group)

    def _product(self, part: Any, divided: Sequence[Declared]) -> None:
        changed = {axis.name: axis for each in divided for axis in self._changed(each)}
        if "in" in changed:

            def summed(*given: Any) -> Tensor:
                return self._sum(given[-1])

            part.register_forward_hook(summed)
        elif "out" in changed and VOCAB in _names(changed["out"]):
            size = changed["out"].size

            def joined(*given: Any) -> Tensor:
                return torch.cat(self.exchange.gather(self.rank.number, given[-1], self.group), -1)[..., :size]

            part.register_forward_hook(joined)

    def _changed(self, declared: Declared) -> list[Axis]:
        own = self.own.signature[declared.name]
        return [axis for axis, other in zip(declared.axes, own.axes, strict=True) if axis.size != other.size]

    def _rows(self, part: Any) -> None:
        forward: Callable[[Tensor], Tensor] = part.forward
        count = part.weight.shape[0]
        first = self.rank.tp * count

        def rows_of_rank(rows_N: Tensor) -> Tensor:
            own_N = (rows_N >= first) & (rows_N < first + count)
            found_Nm = forward((rows_N - first).where(own_N, 0))
            return self._sum(found_Nm * own_N[:, None])

        part.forward = rows_of_rank

    def _experts(self, part: Any, name: str) -> None:
        forward: Callable[[Tensor, Tensor, Tensor], Tensor] = part.forward
        parameter = f"{name}.gate_proj"
        physical = experts_of(self.whole.entries[parameter], parameter, self.parallel, self.stages)
        part.count = len(physical) // self.parallel.ep
        first, everyone = self.rank.ep * part.count, range(self.parallel.stage_ranks)
        place = torch.tensor([physical.index(logical) - first for logical in range(max(physical) + 1)])

        def experts_of_rank(x_Nm: Tensor, selected_NK: Tensor, weights_NK: Tensor) -> Tensor:
            place_NK = place[selected_NK]
            own_NK = (place_NK >= 0) & (place_NK < part.count)
            found_Nm = forward(x_Nm, place_NK.where(own_NK, 0), weights_NK * own_NK)
            return self.exchange.sum(self.rank.number, found_Nm, everyone)

        part.forward = experts_of_rank

    def _norm(self, part: Any) -> None:
        forward, size = part.forward, part.weight.shape[-1]

        def norm_of_all(x: Tensor) -> Tensor:
            if x.shape[-1] == size:
                return forward(x)
            parts = self.exchange.gather(self.rank.number, x, self.group)
            copies = len(parts) * x.shape[-1] // size  # of key heads that several ranks have
            normed = forward(torch.cat(parts[::copies], -1))
            return normed.chunk(len(parts) // copies, -1)[self.rank.tp // copies]

        part.forward = norm_of_all


def _shape(declared: Declared) -> tuple[int, ...]:
    return tuple(axis.size for axis in declared.axes)


def _names(axis: Axis) -> set[str]:
    return {node.name for node in axis.walk()}
