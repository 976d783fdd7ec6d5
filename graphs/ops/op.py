"""`@op`: a named operation with a typed signature and a torch reference.

The signature is checked on every call while a graph is traced, so a wrong shape is told by op, argument and axis
instead of by a traceback inside torch. Programs inline the reference.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from bringup.diagnostics import did_you_mean, fail

if TYPE_CHECKING:
    from torch import Tensor

P = ParamSpec("P")
R = TypeVar("R")
_ARGUMENT = re.compile(r"(\w+)\[([^\]]*)\]")
_ANY_NUMBER = 0x04 | 0x08  # CO_VARARGS and CO_VARKEYWORDS of CPython's code objects: *args, **kwargs


def op(signature: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Declares the shapes of an op's tensor arguments, in order: ``@op("x[... m] weight[m] -> [... m]")``.

    `...` stands for any leading dimensions. The names are those of the reference's first arguments, which a call may
    pass by position or by keyword; an argument with the value None is not checked. Arguments after the listed ones are
    settings. A call whose arguments or shapes do not fit raises BU301. Raises TypeError for a declaration whose names
    are not the reference's.
    """
    takes, _, gives = signature.partition("->")
    arguments = [(name, axes.split()) for name, axes in _ARGUMENT.findall(takes)]
    result = gives.strip().strip("[]").split()

    def declare(reference: Callable[P, R]) -> Callable[P, R]:
        parameters = _parameters(reference)
        declared = [name for name, _ in arguments]
        if parameters[: len(declared)] != declared:
            raise TypeError(f"@op declares {declared}, and `{reference.__name__}` takes {parameters}")

        @wraps(reference)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            sizes: dict[str, tuple[int, str]] = {}
            values = _named(reference, parameters, args, kwargs)
            for name, axes in arguments:
                _bind(reference.__name__, name, axes, values[name], sizes)
            out = reference(*args, **kwargs)
            if result:
                _bind(reference.__name__, "its result", result, out, sizes)  # type: ignore[arg-type]  a tensor
            return out

        return call

    return declare


def _parameters(reference: Callable[..., Any]) -> list[str]:
    """The names of a function's arguments, in order. `inspect` would cost 10 ms to import."""
    code = reference.__code__
    if code.co_flags & _ANY_NUMBER:
        raise TypeError(f"@op: `{reference.__name__}` takes any number of arguments; give each a name")
    return list(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])


def _named(
    reference: Callable[..., Any], parameters: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """Each argument of a call by its name, defaults among them. Raises BU301 where they are not those of the op."""
    op_name, positional = reference.__name__, reference.__code__.co_argcount
    if len(args) > positional:
        raise _wrong_call(op_name, f"takes {positional} arguments by position, not {len(args)}", "")
    values = dict(zip(parameters, args, strict=False))
    for name in kwargs:
        if name not in parameters:
            listed = f"it takes {', '.join(f'`{other}`' for other in parameters)}"
            raise _wrong_call(op_name, f"has no argument `{name}`", did_you_mean(name, parameters) or listed)
        if name in values:
            raise _wrong_call(op_name, f"is given `{name}` by position and by keyword", "leave one of them out")
    defaults = reference.__defaults__ or ()
    by_default = dict(zip(parameters[positional - len(defaults) : positional], defaults, strict=True))
    values = {**by_default, **(reference.__kwdefaults__ or {}), **values, **kwargs}
    if missing := [name for name in parameters if name not in values]:
        raise _wrong_call(op_name, f"is called without `{missing[0]}`", "")
    return values


def _wrong_call(op_name: str, why: str, help: str) -> Exception:
    return fail("BU301", f"op `{op_name}` {why}", help=help or "look at the call in the graph's forward")


def _bind(op_name: str, name: str, axes: list[str], value: Tensor | None, sizes: dict[str, tuple[int, str]]) -> None:
    if value is None:  # an optional tensor, such as a bias
        return
    if not hasattr(value, "shape"):
        raise _wrong_call(op_name, f"takes a tensor as `{name}`, not a {type(value).__name__}", "")
    shape = tuple(value.shape)
    leading = axes[:1] == ["..."]
    named = axes[1:] if leading else axes
    if len(shape) < len(named) or (len(shape) > len(named) and not leading):
        raise _mismatch(op_name, name, axes, shape, f"{len(named)} dimensions are expected")
    for axis, size in zip(named, shape[len(shape) - len(named) :], strict=True):
        if type(size) is not int:  # torch.export checks dynamic sizes
            continue
        other, where = sizes.setdefault(axis, (size, name))
        if other != size:
            raise _mismatch(op_name, name, axes, shape, f"axis `{axis}` is {size} here but {other} in `{where}`")


def _mismatch(op_name: str, name: str, axes: list[str], shape: tuple[int, ...], why: str) -> Exception:
    return fail(
        "BU301",
        f"op `{op_name}`: `{name}` is declared [{' '.join(axes)}] and has shape {list(shape)}; {why}",
        help="look at the call in the graph's forward: a reshape or transpose before it is missing or wrong",
    )
