# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUntypedBaseClass=false
"""The change of logits if the result of one operation of a graph is scaled slightly."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from bringup.compile.bisect.eager import Eager
from bringup.compile.targets.schedule import OPAQUE
from bringup.graphs.ops.lowering import OpLowering, using

STEP = 2.0**-10  # the relative change: far above the rounding of float32, and small enough to be linear
_LINEAR = frozenset({"bringup.linear.default", "aten.mm.default", "aten.mul.Tensor"})


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of a stage: the prologue is stage 0, layer i is stage i + 1, the epilogue comes last."""

    stage: int
    index: int
    target: str


class _Stages(TorchDispatchMode):
    """Counts the operations of each stage of a graph."""

    def __init__(self) -> None:
        super().__init__()
        self.stage, self.index = 0, -1

    def enter(self, stage: int) -> None:
        self.stage, self.index = stage, -1

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.index += 1
        at = self.index
        return self.ran(at, func, args, func(*args, **kwargs or {}))

    def ran(self, index: int, func: Any, args: Any, found: Any) -> Any:
        raise NotImplementedError


class Listing(_Stages):
    """Lists the operations of a step.

    Views are omitted. `distinct` also omits operations whose only reader is linear: their factor is the reader's.
    """

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[Operation] = []
        self._held: list[Any] = []  # keeps tensors alive, so that an id identifies one tensor
        self._readers: dict[int, list[str]] = {}
        self._results: list[int] = []

    def ran(self, index: int, func: Any, args: Any, found: Any) -> Any:
        name = str(func)
        is_view = any(result.alias_info for result in func._schema.returns)
        result = _float_of(found)
        for value in tree_leaves(args):
            if isinstance(value, Tensor):
                is_affine = name == "bringup.linear.default" and len(args) > 2 and args[2] is not None
                self._readers.setdefault(id(value), []).append("" if is_affine else name)
        self._held.append((args, found))
        if result is not None and not is_view:
            self.operations.append(Operation(self.stage, index, name))
            self._results.append(id(result))
        return found

    @property
    def distinct(self) -> list[Operation]:
        """The operations whose factors have different effects on the logits."""
        pairs = zip(self.operations, self._results, strict=True)
        return [op for op, result in pairs if not self._only_linear(result)]

    def _only_linear(self, result: int) -> bool:
        readers = self._readers.get(result, [])
        return len(readers) == 1 and readers[0] in _LINEAR


class Scaling(_Stages):
    """Multiplies the result of one operation by 1 + `STEP`, in each of `stages`."""

    def __init__(self, stages: Collection[int], index: int) -> None:
        super().__init__()
        self.stages, self.wanted = stages, index

    def ran(self, index: int, func: Any, args: Any, found: Any) -> Any:
        if index != self.wanted or self.stage not in self.stages:
            return found
        larger = _float_of(found) * (1 + STEP)
        return larger if isinstance(found, Tensor) else (larger, *found[1:])


def _float_of(found: Any) -> Any:
    """The float tensor that an operation returns, the first of several; None if it is not a float tensor."""
    first = found[0] if isinstance(found, tuple | list) and found else found
    return first if isinstance(first, Tensor) and first.is_floating_point() and first.ndim else None


@contextmanager
def staged(graph: Eager, mode: _Stages) -> Generator[None]:
    """In the block, `mode` records the graph's operations by stage, with the operators that programs have."""
    layers = list(graph.module.layers)

    def entering(stage: int) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            mode.enter(stage)

        return hook

    hooks = [layer.register_forward_pre_hook(entering(at + 1)) for at, layer in enumerate(layers)]
    hooks.append(layers[-1].register_forward_hook(entering(len(layers) + 1)))
    mode.enter(0)
    try:
        with using(OpLowering(opaque=OPAQUE)), mode:
            yield
    finally:
        for hook in hooks:
            hook.remove()
