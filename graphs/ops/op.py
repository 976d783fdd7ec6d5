"""`@op`: a named operation with a typed signature and a torch reference.

The signature is checked on every call while a graph is traced, so a wrong shape is told by op, argument and axis
instead of by a traceback inside torch. Programs inline the reference.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from bringup.diagnostics import fail

if TYPE_CHECKING:
    from torch import Tensor

P = ParamSpec("P")
R = TypeVar("R")
_ARGUMENT = re.compile(r"(\w+)\[([^\]]*)\]")


def op(signature: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Declares the shapes of an op's tensor arguments, in order: ``@op("x[... m] weight[m] -> [... m]")``.

    `...` stands for any leading dimensions. Arguments after the listed ones are settings. A call whose shapes do not
    fit raises BU301.
    """
    takes, _, gives = signature.partition("->")
    arguments = [(name, axes.split()) for name, axes in _ARGUMENT.findall(takes)]
    result = gives.strip().strip("[]").split()

    def declare(reference: Callable[P, R]) -> Callable[P, R]:
        @wraps(reference)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            sizes: dict[str, int] = {}
            for (name, axes), value in zip(arguments, args, strict=False):
                _bind(reference.__name__, name, axes, value, sizes)  # type: ignore[arg-type]  tensors by declaration
            out = reference(*args, **kwargs)
            if result:
                _bind(reference.__name__, "its result", result, out, sizes)  # type: ignore[arg-type]
            return out

        return call

    return declare


def _bind(op_name: str, name: str, axes: list[str], value: Tensor | None, sizes: dict[str, int]) -> None:
    if value is None:  # an optional tensor, such as a bias
        return
    shape = tuple(value.shape)
    leading = axes[:1] == ["..."]
    named = axes[1:] if leading else axes
    if len(shape) < len(named) or (len(shape) > len(named) and not leading):
        raise _mismatch(op_name, name, axes, shape, f"{len(named)} dimensions are wanted")
    for axis, size in zip(named, shape[len(shape) - len(named) :], strict=True):
        if type(size) is int and sizes.setdefault(axis, size) != size:  # dynamic sizes are checked by torch.export
            raise _mismatch(op_name, name, axes, shape, f"axis `{axis}` is {sizes[axis]} in an argument before it")


def _mismatch(op_name: str, name: str, axes: list[str], shape: tuple[int, ...], why: str) -> Exception:
    return fail(
        "BU301",
        f"op `{op_name}`: `{name}` is declared [{' '.join(axes)}] and has shape {list(shape)}; {why}",
        help="look at the call in the graph's forward: a reshape or transpose before it is missing or wrong",
    )
