# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""An op as one torch operator, `torch.ops.bringup.<name>`, which is opaque in a traced program.

Its schema follows from the reference's annotations: a record of tensors, such as a Step, becomes one argument for each
field (`step_tokens`, `step_positions`, …). Its fake implementation, for shapes and dtypes, is the reference on tensors
without data (`result_sizes.py`); run by torch, it is the reference itself, or the function of `runs_as`.
https://docs.pytorch.org/docs/stable/library.html#torch.library.custom_op
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from bringup.graphs.ops.op import Op

if TYPE_CHECKING:
    from bringup.graphs.ops.result_sizes import Known

_TYPES = {
    **{"Tensor": "Tensor", "Tensor | None": "Tensor?", "bool": "bool", "str": "str"},
    **{"int": "int", "int | None": "int?", "float": "float", "float | None": "float?"},
    **{"tuple[int, ...]": "int[]", "tuple[float, ...]": "float[]"},
}
_RESULTS = {"None": "()", "Tensor": "Tensor", "tuple[Tensor, Tensor]": "(Tensor, Tensor)"}


class Argument(NamedTuple):
    """An argument of an operator. For the field of a record, `record` is its class; `parameter` is that of the op."""

    name: str
    parameter: str
    type: str
    record: type[Any] | None = None

    @property
    def field(self) -> str:
        return self.name.removeprefix(f"{self.parameter}_")

    def of(self, value: Any) -> Any:
        """The value of this argument, from that of the op's argument."""
        return getattr(value, self.field) if self.record else value


class Operator:
    """Calls the torch operator of an op with the op's own arguments."""

    def __init__(self, op: Op[..., Any]) -> None:
        from torch.library import custom_op

        self.op, self.arguments = op, list(_arguments(op))
        result = _RESULTS.get(_written(op.reference.__annotations__.get("return")))
        if result is None:
            raise TypeError(f"op `{op.name}` cannot be opaque: it returns {op.reference.__annotations__.get('return')}")
        marks = {name: f"(a{index}!)" for index, name in enumerate(op.mutated)}
        listed = (f"{a.type.replace('Tensor', 'Tensor' + marks.get(a.name, ''), 1)} {a.name}" for a in self.arguments)
        schema = f"({', '.join(listed)}) -> {result}"
        name = op.name.replace("_", "__").replace(".", "_") if "." in op.name else op.name
        other = _taken.setdefault(name, op)
        if (other.reference.__module__, other.name) != (op.reference.__module__, op.name):
            raise TypeError(
                f"two ops are called `{op.name}`: of {other.reference.__module__} and {op.reference.__module__}"
            )
        name = f"bringup::{name}"
        self.torch_op = custom_op(name, partial(self._run, op.run), mutates_args=op.mutated, schema=schema)
        self.torch_op.register_fake(self._fake)
        self._known: Known | None = None if "." in op.name else {}  # a user's op may depend on more than its arguments

    def __call__(self, values: Mapping[str, Any]) -> Any:
        """`values`: each argument of the op by name."""
        return self.torch_op(*(argument.of(values[argument.parameter]) for argument in self.arguments))

    def values(self, flat: tuple[Any, ...]) -> dict[str, Any]:
        """The op's arguments by name, from the operator's arguments in order, as in a call of a traced program."""
        values: dict[str, Any] = {}
        fields: dict[str, tuple[type[Any], dict[str, Any]]] = {}
        for argument, value in zip(self.arguments, flat, strict=True):
            if argument.record:
                _, given = fields.setdefault(argument.parameter, (argument.record, {}))
                given[argument.field] = value
            else:
                values[argument.name] = value
        return values | {name: record(**given) for name, (record, given) in fields.items()}

    def _fake(self, *flat: Any) -> Any:
        """Results without data: from the sizes of the arguments if these determine them, otherwise by the reference."""
        from bringup.graphs.ops.result_sizes import results_like

        return results_like(partial(self._run, self.op.reference), flat, self._known)

    def _run(self, function: Callable[..., Any], *flat: Any) -> Any:
        """The function's result, copied if it shares memory with an argument, which operators must not."""
        given = {_storage(value) for value in flat if hasattr(value, "untyped_storage")}
        out = function(**self.values(flat))
        if isinstance(out, tuple):
            return tuple(tensor.clone() if _storage(tensor) in given else tensor for tensor in out)
        return out.clone() if out is not None and _storage(out) in given else out


_taken: dict[str, Op[..., Any]] = {}  # by name of the operator
_operators: dict[Callable[..., Any], Operator] = {}


def operator_of(op: Op[..., Any]) -> Operator:
    """The operator of an op, defined on first use. Raises TypeError for an op that cannot be an operator."""
    if op.reference not in _operators:
        _operators[op.reference] = Operator(op)
    return _operators[op.reference]


def _written(annotation: Any) -> str:
    """An annotation as text: `Tensor | None`, also for a module that does not postpone its annotations."""
    text = (
        annotation.__name__ if type(annotation) is type or "_TensorMeta" in str(type(annotation)) else str(annotation)
    )
    return text.replace("torch.Tensor", "Tensor").replace("torch._tensor.Tensor", "Tensor").replace("NoneType", "None")


def _storage(tensor: Any) -> Any:
    return tensor.untyped_storage()._cdata


def _arguments(op: Op[..., Any]) -> Iterator[Argument]:
    written: Mapping[str, Any] = op.reference.__annotations__
    for name in op.parameters:
        type_name = _written(written.get(name))
        if type_name in _TYPES:
            yield Argument(name, name, _TYPES[type_name])
            continue
        record = _record(op, type_name)
        for field, kind in record.__annotations__.items():
            yield Argument(f"{name}_{field}", name, _TYPES[getattr(kind, "__forward_arg__", str(kind))], record)


def _record(op: Op[..., Any], name: str) -> type[Any]:
    """The class of an argument that is a record of tensors."""
    if name == "Step":
        from bringup.graphs.core.step import Step

        return Step
    found = op.reference.__globals__.get(name)
    if not isinstance(found, type) or not found.__annotations__:
        raise TypeError(f"op `{op.name}` cannot be opaque: `{name}` is neither a tensor, a number nor a record of them")
    return found
