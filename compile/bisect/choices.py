# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUntypedBaseClass=false
"""What a graph chooses by `topk` (experts, keys): the scores, what was chosen, and choices made for it.

A choice is the one place where rounding does not stay small: two scores that rounding cannot tell apart give two
experts. So a choice that 16 bits make otherwise is taken over in float32 before the logits are compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from bringup.compile.parity.rounding import ROW, rms


@dataclass(frozen=True, slots=True)
class Choice:
    """One `topk` of one step: scores [N, …, E] in float32, and the indices [N, …, k] that were taken."""

    scores: torch.Tensor
    taken: torch.Tensor
    axis: int


class Choosing(TorchDispatchMode):
    """Records each choice in `choices`. Those in `given` are replayed in turn; the values are the graph's own."""

    def __init__(self, given: Sequence[Choice] = ()) -> None:
        super().__init__()
        self.given, self.choices = given, list[Choice]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **kwargs or {})
        if func is not torch.ops.aten.topk.default:
            return found
        scores, axis = args[0], args[2] if len(args) > 2 else -1
        values, taken = found
        if self.given:
            taken = self.given[len(self.choices)].taken
            values = scores.gather(axis, taken)
        self.choices.append(Choice(scores.detach().float().clone(), taken.clone(), axis))
        return values, taken


def undecided(rounded: Sequence[Choice], exact: Sequence[Choice], rows: int) -> np.ndarray:
    """Bool [rows]: whether a row has a choice that rounding cannot tell from another.

    Its margin, between the least score taken and the best left, is within `ROW` times what rounding moves its scores.
    """
    found = np.zeros(rows, bool)
    for low, high in zip(rounded, exact, strict=True):
        if len(high.scores) < rows:
            continue
        k = high.taken.shape[high.axis]
        if k == high.scores.shape[high.axis]:
            continue
        ordered = high.scores.movedim(high.axis, -1)[:rows].sort(-1, descending=True).values
        margin = (ordered[..., k - 1] - ordered[..., k]).reshape(rows, -1).numpy()
        both = torch.isfinite(low.scores) & torch.isfinite(high.scores)
        gap = torch.where(both, low.scores - high.scores, 0.0)[:rows].numpy()
        close = margin <= ROW * rms(gap)[:, None]  # NaN, of two scores that a mask made -inf, is not
        found |= close.any(-1)
    return found
