# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUntypedBaseClass=false
"""The order of equal scores in `topk`, which torch leaves open.

The score of a key by an indexer is exactly 0 if all products of its heads are negative. Many keys of a query may have
that score; which of them `topk` selects follows from its algorithm, from the number of scores, and from the device.
bringup selects the first ones (`ops.topk_keys`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class FirstOfEqual(TorchDispatchMode):
    """torch's `topk` in the block selects the first of equal scores.

    `rows`: those in which it would have selected other elements, among scores that no mask of an attention excludes.
    """

    def __init__(self) -> None:
        super().__init__()
        self.rows = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **kwargs or {})
        return self._selected(found, *args) if func is torch.ops.aten.topk.default else found

    def _selected(self, found: Any, scores: Any, count: int, axis: int = -1, largest: bool = True, *_: bool) -> Any:
        values, order = torch.sort(scores, dim=axis, descending=largest, stable=True)
        values, order = values.narrow(axis, 0, count), order.narrow(axis, 0, count)
        if count and scores.is_floating_point():
            other = (order.sort(axis).values != found[1].sort(axis).values).any(axis)
            masked = values.select(axis, count - 1) <= torch.finfo(values.dtype).min
            self.rows += int((other & ~masked).sum())
        return values, order
