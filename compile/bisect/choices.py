# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUntypedBaseClass=false
"""What a graph selects with `topk` (experts, keys): scores, selected indices, and the replay of a selection.

Only in selections the effect of rounding is not small: if rounding cannot tell two scores apart, two programs may
select different experts. So the selections of the 16-bit graph are replayed in float32 before logits are compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from bringup.compile.parity.rounding import rms
from bringup.graphs.ops.lowering import OpLowering, using
from bringup.graphs.ops.topk_keys import selected_positions, top_keys

# A choice is open if scores differ by less than this multiple of the rounding of its row's scores, or of the median
# row's if that is larger: the rounding of one row may be small by chance. A choice counts only if it explains the
# logits.
OPEN = 12.0
ALTERNATIVES = 16  # other choices that are tried for one, the closest first


@dataclass(frozen=True, slots=True)
class Choice:
    """One `topk` of one step: scores [N, …, E] in float32, and the selected indices [N, …, k], along `axis`."""

    scores: torch.Tensor
    taken: torch.Tensor
    axis: int


@dataclass(frozen=True, slots=True)
class Plan:
    """Choices to replay: row r of a step replays the first `held[r]` of `choices` and computes the others.

    `held` is int64 [N]. A choice with another number of rows is replayed for all of them.
    """

    choices: tuple[Choice, ...]
    held: torch.Tensor

    @staticmethod
    def of(choices: Sequence[Choice], rows: int) -> Plan:
        """A plan that replays all of these for `rows` rows."""
        return Plan(tuple(choices), torch.full((rows,), len(choices)))

    def swapped(self, index: int, swaps: dict[int, Swap]) -> Plan:
        """The same plan with `swaps`, by row, in the choice at `index`; these rows compute the choices after it."""
        choice, held = self.choices[index], self.held.clone()
        taken = choice.taken.movedim(choice.axis, -1).clone()
        for row, swap in swaps.items():
            flat = taken[row].reshape(-1, taken.shape[-1])
            flat[swap.place][flat[swap.place] == swap.out] = swap.into
            taken[row] = flat.reshape(taken[row].shape)
            held[row] = index + 1
        other = replace(choice, taken=taken.movedim(-1, choice.axis))
        return Plan((*self.choices[:index], other, *self.choices[index + 1 :]), held)


@dataclass(frozen=True, slots=True)
class Swap:
    """In one choice of a row, at `place` of the flattened middle axes: `into` is selected instead of `out`."""

    place: int
    out: int
    into: int


def _keys(scores_NL: torch.Tensor, positions_N: torch.Tensor, count: int) -> torch.Tensor:
    """`ops.topk_keys.top_keys`, computed from the indices of `topk`; those of the reference are not used."""
    length = scores_NL.shape[1]
    seen_NL = torch.arange(length)[None] <= positions_N[:, None]
    taken_NK = scores_NL.masked_fill(~seen_NL, -torch.inf).topk(min(count, length), dim=-1).indices
    return torch.zeros_like(seen_NL).scatter(1, taken_NK, True)


def _positions(selected_NL: torch.Tensor, positions_N: torch.Tensor, count: int) -> torch.Tensor:
    """`ops.topk_keys.selected_positions` without `topk`: it chooses nothing."""
    length = selected_NL.shape[1]
    at_L = torch.arange(length)
    found = torch.where(selected_NL & (at_L <= positions_N[:, None]), at_L, length)
    enough = torch.cat((found, found.new_full((len(found), count), length)), -1)
    return enough.sort(-1).values[:, :count]


_BY_INDEX = OpLowering(implementations={top_keys.name: _keys, selected_positions.name: _positions})


class Choosing(TorchDispatchMode):
    """Records each choice in `choices`. Those of a plan are replayed in order; the values are computed by the graph."""

    def __init__(self, plan: Plan | None = None) -> None:
        super().__init__()
        self.plan, self.choices, self._ops = plan, list[Choice](), ExitStack()

    def __enter__(self) -> Choosing:
        self._ops.enter_context(using(_BY_INDEX))
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._ops.close()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **kwargs or {})
        if func is not torch.ops.aten.topk.default:
            return found
        scores, axis = args[0], args[2] if len(args) > 2 else -1
        values, taken = found
        if self.plan:
            given = self.plan.choices[len(self.choices)].taken
            held = self.plan.held > len(self.choices)
            if len(held) == len(given):
                taken = torch.where(held.reshape(-1, *[1] * (given.ndim - 1)), given, taken)
            else:
                taken = given
            values = scores.gather(axis, taken)
        self.choices.append(Choice(scores.detach().float().clone(), taken.clone(), axis))
        return values, taken


def moved(rounded: Sequence[Choice], exact: Sequence[Choice], rows: int) -> list[np.ndarray | None]:
    """The RMS of the rounding of each row's scores, float64 [rows], for each choice.

    None for a choice that selects everything, or that has fewer rows.
    """
    found: list[np.ndarray | None] = []
    for low, high in zip(rounded, exact, strict=True):
        if len(high.scores) < rows or high.taken.shape[high.axis] == high.scores.shape[high.axis]:
            found.append(None)
            continue
        both = torch.isfinite(low.scores) & torch.isfinite(high.scores)
        found.append(rms(torch.where(both, low.scores - high.scores, 0.0)[:rows].numpy()))
    return found


def swaps(choice: Choice, row: int, within: float) -> list[Swap]:
    """The other choices of a row if scores that differ by at most `within` count as equal; the closest first."""
    scores = choice.scores[row].movedim(choice.axis if choice.axis < 0 else choice.axis - 1, -1)
    taken = choice.taken[row].movedim(choice.axis if choice.axis < 0 else choice.axis - 1, -1)
    found: list[tuple[float, Swap]] = []
    for place, (some, indices) in enumerate(
        zip(scores.reshape(-1, scores.shape[-1]).numpy(), taken.reshape(-1, taken.shape[-1]).numpy(), strict=True)
    ):
        left = np.setdiff1d(np.flatnonzero(np.isfinite(some)), indices)
        indices = indices[np.isfinite(some[indices])]
        if not len(left) or not len(indices):
            continue
        lowest, highest = some[indices].min(), some[left].max()
        outs = indices[some[indices] <= max(highest, lowest) + within]
        intos = left[some[left] >= min(highest, lowest) - within]
        for out in outs:
            for into in intos:
                lowest_after = np.append(some[indices[indices != out]], some[into]).min()
                rest = np.append(some[left[left != into]], some[out]).max()
                if rest - lowest_after <= within:
                    found.append((float(rest - lowest_after), Swap(place, int(out), int(into))))
    found.sort(key=lambda pair: pair[0])
    return [swap for _, swap in found[:ALTERNATIVES]]
