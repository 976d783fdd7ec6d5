"""`@op`: a named operation with a typed signature and a torch reference.

The signature is checked on every call while a graph is traced, so a wrong shape is reported by op, argument and axis
instead of by a traceback inside torch. The tracer decides what a call becomes (`lowering.using`): the reference's own
operations, another implementation, or one opaque torch operator.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import update_wrapper
from typing import Any, Generic, ParamSpec, TypeVar, cast

from bringup.diagnostics import did_you_mean, fail
from bringup.graphs.ops.lowering import current
from bringup.userfiles import SIBLING

P = ParamSpec("P")
R = TypeVar("R")
_ARGUMENT = re.compile(r"(\w+)\[([^\]]*)\](!?)")
_ANY_NUMBER = 0x04 | 0x08  # CO_VARARGS and CO_VARKEYWORDS of CPython's code objects: *args, **kwargs
_OWN = "bringup.graphs.ops."


class Op(Generic[P, R]):
    """A declared operation. `name` is its name for targets: the function's, with its module before it for users' ops
    (`my_model.swiglu`). `mutated`: the arguments that it changes in place."""

    def __init__(self, signature: str, reference: Callable[P, R]) -> None:
        takes, _, gives = signature.partition("->")
        listed = _ARGUMENT.findall(takes)
        self.signature, self.reference = signature, reference
        self.arguments = [(name, axes.split()) for name, axes, _ in listed]
        self.mutated = tuple(name for name, _, mark in listed if mark)
        self.result = gives.strip().strip("[]").split()
        self.parameters = _parameters(reference)
        self._defaults = _defaults(reference, self.parameters)
        self.name = f"{_module_of(reference)}{reference.__name__}"
        declared = [name for name, _ in self.arguments]
        if self.parameters[: len(declared)] != declared:
            raise TypeError(
                f"@op declares {declared}, but the arguments of `{reference.__name__}` are {self.parameters}"
            )
        self._checked = [(name, axes, _named(axes)) for name, axes in self.arguments]
        self._checked_result = _named(self.result)
        self.run: Callable[P, R] = reference
        update_wrapper(self, reference)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Raises BU301 for arguments, shapes or a result that do not fit the signature."""
        sizes: dict[str, tuple[int, str]] = {}
        values = self.bind(args, kwargs)
        for name, axes, named in self._checked:
            _bind(self.reference.__name__, name, axes, named, values[name], sizes)
        lowering = current()
        if self.name in lowering.opaque:
            from bringup.graphs.ops.operator import operator_of

            out = operator_of(cast(Any, self))(values)
        else:
            out = lowering.implementations.get(self.name, self.reference)(*args, **kwargs)
        if self.result:
            _bind(self.reference.__name__, "its result", self.result, self._checked_result, out, sizes)
        return out

    def runs_as(self, function: Callable[P, R]) -> Callable[P, R]:
        """Decorates a function that torch runs instead of the reference for an opaque op, to use less memory."""
        self.run = function
        return function

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Each argument of a call by its name, with defaults. Raises BU301 if they do not match the op's arguments."""
        reference, parameters = self.reference, self.parameters
        op_name, positional = reference.__name__, reference.__code__.co_argcount
        if len(args) > positional:
            raise _wrong_call(op_name, f"accepts {positional} positional arguments, not {len(args)}", "")
        given = dict(zip(parameters, args, strict=False))
        for name in kwargs:
            if name not in parameters:
                listed = f"its arguments are {', '.join(f'`{other}`' for other in parameters)}"
                raise _wrong_call(op_name, f"has no argument `{name}`", did_you_mean(name, parameters) or listed)
            if name in given:
                raise _wrong_call(op_name, f"has `{name}` by position and by keyword", "leave one of them out")
        values = {**self._defaults, **given, **kwargs}
        if missing := [name for name in parameters if name not in values]:
            raise _wrong_call(op_name, f"is called without `{missing[0]}`", "")
        return {name: values[name] for name in parameters}


def op(signature: str) -> Callable[[Callable[P, R]], Op[P, R]]:
    """Declares the shapes of an op's tensor arguments, in order: ``@op("x[... m] weight[m] -> [... m]")``.

    `...` stands for any leading dimensions; `!` after an argument declares that the op changes it in place
    (``cache[S G K]!``). The names are those of the reference's first arguments, which a call may pass by position or by
    keyword; an argument with the value None is not checked. Arguments after the listed ones are settings. A call whose
    arguments or shapes do not match raises BU301. Raises TypeError if the declared names are not the reference's.
    """

    def declare(reference: Callable[P, R]) -> Op[P, R]:
        return Op(signature, reference)

    return declare


def _module_of(reference: Callable[..., Any]) -> str:
    """`my_model.`; "" for bringup's own ops. A user's file is identified by its name, whatever its folder."""
    module = reference.__module__
    if module.startswith(_OWN):
        return ""
    return f"{module.partition('.')[2] if module.startswith(SIBLING) else module}."


def _parameters(reference: Callable[..., Any]) -> list[str]:
    """The names of a function's arguments, in order. The import of `inspect` would take 10 ms."""
    code = reference.__code__
    if code.co_flags & _ANY_NUMBER:
        raise TypeError(f"@op: `{reference.__name__}` accepts any number of arguments; give each a name")
    return list(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])


def _defaults(reference: Callable[..., Any], parameters: Sequence[str]) -> dict[str, Any]:
    """The defaults of a function's arguments, by name."""
    positional, defaults = reference.__code__.co_argcount, reference.__defaults__ or ()
    by_position = dict(zip(parameters[positional - len(defaults) : positional], defaults, strict=True))
    return by_position | (reference.__kwdefaults__ or {})


def _named(axes: list[str]) -> list[str]:
    """The axes without the `...` before them."""
    return axes[1:] if axes[:1] == ["..."] else axes


def _wrong_call(op_name: str, why: str, help: str) -> Exception:
    return fail("BU301", f"op `{op_name}` {why}", help=help or "check the call in the graph's forward")


def _bind(
    op_name: str, name: str, axes: list[str], named: list[str], value: Any, sizes: dict[str, tuple[int, str]]
) -> None:
    """Compares a tensor's shape with its axes; `named` are those without `...`. `sizes`: of the axes seen before."""
    if value is None:  # an optional tensor, such as a bias
        return
    try:
        shape = tuple(value.shape)
    except AttributeError:
        raise _wrong_call(op_name, f"expects a tensor as `{name}`, not a {type(value).__name__}", "") from None
    leading = len(shape) - len(named)
    if leading and (leading < 0 or len(named) == len(axes)):
        raise _mismatch(op_name, name, axes, shape, f"{len(named)} dimensions are expected")
    for axis, size in zip(named, shape[leading:] if leading else shape, strict=True):
        if type(size) is not int:  # torch.export checks dynamic sizes
            continue
        other, where = sizes.setdefault(axis, (size, name))
        if other != size:
            raise _mismatch(op_name, name, axes, shape, f"axis `{axis}` is {size} here but {other} in `{where}`")


def _mismatch(op_name: str, name: str, axes: list[str], shape: tuple[int, ...], why: str) -> Exception:
    return fail(
        "BU301",
        f"op `{op_name}`: `{name}` is declared [{' '.join(axes)}] and has shape {list(shape)}; {why}",
        help="check the call in the graph's forward: a reshape or transpose before it is missing or wrong",
    )
