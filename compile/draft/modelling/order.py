"""The order of q, k and v in the rows of one matrix: transformers' statements are applied to the numbers of the rows.

The statements are interpreted, not run: sizes, and operations that move elements. The result of another one is
unknown.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from bringup.compile.draft.modelling.decided import MODULE, UNKNOWN, set_in
from bringup.compile.draft.modelling.moves import MOVED, Array, is_array, moved
from bringup.compile.draft.modelling.part import Part

TOKENS = 5
NAMES = {x: re.compile(rf"{x[0]}|{x}(s|_states|_layer)?") for x in ("query", "key", "value")}
_NUMBERS: Mapping[type[ast.operator], str] = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.FloorDiv: "floordiv", ast.Div: "truediv", ast.Pow: "pow",
    ast.Mod: "mod",
}  # fmt: skip
_COMPARED: Mapping[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Is: operator.is_, ast.IsNot: operator.is_not,
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
}  # fmt: skip


def order_of(
    part: Part, config: Mapping[str, Any], matrix: str, rows: int, sizes: tuple[int, int, int]
) -> tuple[list[int], ...] | None:
    """The rows of q, k and v, head by head, in a matrix of a part of the code, the attribute `matrix`; None if its
    statements are not movements alone. `sizes`: query heads, key heads, channels."""
    forward = next((each for each in part.functions if each.name == "forward"), None)
    if forward is None or len(forward.args.args) < 2:
        return None
    reading = _Reading(part, config, matrix, rows)
    for function in (each for each in part.functions if each.name == "__init__"):
        reading.run(function.body)
    reading.values |= {name: value for name, value in part.known.items() if value not in (UNKNOWN, MODULE)}
    inputs = np.zeros((1, TOKENS, int(config.get("hidden_size") or rows)), np.int8)
    reading.values |= {each.arg: UNKNOWN for each in forward.args.args} | {forward.args.args[1].arg: inputs}
    found: list[tuple[list[int], ...]] = []
    for _ in reading.steps(forward.body):
        three = reading.three(sizes[2]) or ()
        heads = [_heads(each, rows, n) for each, n in zip(three, (sizes[0], sizes[1], sizes[1]), strict=False)]
        order = tuple(each for each in heads if each is not None)
        if len(order) < 3 and not found and three:
            return None
        found += [order] if len(order) == 3 and order not in found else []
    return found[0] if len(found) == 1 else None


def _heads(array: Array, rows: int, heads: int) -> list[int] | None:
    """The row numbers of an array [1, token, head, channel] or [1, head, token, channel] of as many heads, or of heads
    that are repeated for their queries; None for another array."""
    if array.shape[0] != 1 or TOKENS not in array.shape[1:3]:
        return None
    both = (array[0], array[0].swapaxes(0, 1))
    found = [each for each in both if each.shape[0] == TOKENS and (each // rows == _tokens(each)).all()]
    if not found:
        return None
    first = found[0][0]
    if not (found[0] == first + rows * _tokens(found[0])).all() or first.shape[0] < heads or first.shape[0] % heads:
        return None
    grouped = first.reshape(heads, first.shape[0] // heads, -1)
    return grouped[:, 0].ravel().tolist() if (grouped == grouped[:, :1]).all() else None


def _tokens(array: Array) -> Array:
    numbers: Array = np.arange(array.shape[0], dtype=np.int64)
    return numbers.reshape(-1, 1, 1)


@dataclass(slots=True)
class _Reading:
    part: Part
    config: Mapping[str, Any]
    matrix: str
    rows: int
    values: dict[str, Any] = field(default_factory=dict[str, Any])

    def three(self, channels: int) -> list[Array] | None:
        """The variables of queries, keys and values, once each has an axis of heads."""
        found: list[Array] = []
        for name in NAMES.values():
            arrays = [value for key, value in self.values.items() if name.fullmatch(key)]
            arrays = [value for value in arrays if is_array(value)]
            found += [each for each in arrays if each.ndim == 4 and each.shape[3] == channels][:1]
        return found if len(found) == 3 else None

    def run(self, body: list[ast.stmt]) -> Any:
        """The value that the statements return."""
        for node in self.steps(body):
            if isinstance(node, ast.Return):
                return self.value(node.value) if node.value else None
        return None

    def steps(self, body: list[ast.stmt]) -> Iterator[ast.stmt]:
        """Each statement after it is interpreted; statements of a test that is unknown set unknown values."""
        for node in body:
            test = self.value(node.test) if isinstance(node, ast.If) else UNKNOWN
            if isinstance(node, ast.If) and isinstance(test, bool | int | type(None)):
                for each in self.steps(node.body if test else node.orelse):
                    yield each
                    if isinstance(each, ast.Return):
                        return
            elif isinstance(node, ast.Assign):
                value = self.value(node.value)
                for target in node.targets:
                    self.set(target, value)
            else:
                self.values |= dict.fromkeys(set_in(node), UNKNOWN)
            yield node

    def set(self, target: ast.expr, value: Any) -> None:
        if not isinstance(target, ast.Tuple | ast.List):
            self.values[ast.unparse(target)] = value
            return
        known = isinstance(value, tuple | list) and len(cast("list[Any]", value)) == len(target.elts)
        for at, each in enumerate(target.elts):
            self.set(each, value[at] if known else UNKNOWN)

    def value(self, node: ast.expr) -> Any:
        """The value of an expression, UNKNOWN for one with other operations, or with an error."""
        read = getattr(self, f"_{type(node).__name__.lower()}", None)
        try:
            return read(node) if read else UNKNOWN
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            return UNKNOWN

    def _constant(self, node: ast.Constant) -> Any:
        return node.value

    def _name(self, node: ast.Name) -> Any:
        return self.values.get(node.id, UNKNOWN)

    def _attribute(self, node: ast.Attribute) -> Any:
        text = ast.unparse(node)
        if text.removeprefix("self.").startswith("config."):
            found: Any = self.config
            for word in text.removeprefix("self.").split(".")[1:]:
                found = found[word]
            return found
        if text.startswith("self."):
            return self.values.get(text, UNKNOWN)
        array = self.value(node.value)
        return array.shape if is_array(array) and node.attr == "shape" else UNKNOWN

    def _tuple(self, node: ast.Tuple | ast.List) -> Any:
        items: list[Any] = []
        for each in node.elts:
            value = self.value(each.value if isinstance(each, ast.Starred) else each)
            if value is UNKNOWN:
                return UNKNOWN
            items += value if isinstance(each, ast.Starred) else [value]
        return items if isinstance(node, ast.List) else tuple(items)

    _list = _tuple

    def _listcomp(self, node: ast.ListComp) -> Any:
        (loop,) = node.generators
        results: list[Any] = []
        for each in self.value(loop.iter):
            self.set(loop.target, each)
            results.append(self.value(node.elt))
        return UNKNOWN if loop.ifs else results

    def _binop(self, node: ast.BinOp) -> Any:
        both = self.value(node.left), self.value(node.right)
        plain = all(isinstance(each, int | float | tuple | list) for each in both)
        return getattr(operator, _NUMBERS[type(node.op)])(*both) if plain else UNKNOWN

    def _unaryop(self, node: ast.UnaryOp) -> Any:
        value = self.value(node.operand)
        if value is UNKNOWN or is_array(value):
            return UNKNOWN
        return not value if isinstance(node.op, ast.Not) else -value if isinstance(node.op, ast.USub) else UNKNOWN

    def _compare(self, node: ast.Compare) -> Any:
        both = self.value(node.left), self.value(node.comparators[0])
        if UNKNOWN in [each for each in both if not is_array(each)] or len(node.ops) > 1:
            return UNKNOWN
        return bool(_COMPARED[type(node.ops[0])](*both))

    def _ifexp(self, node: ast.IfExp) -> Any:
        test = self.value(node.test)
        return UNKNOWN if test is UNKNOWN else self.value(node.body if test else node.orelse)

    def _boolop(self, node: ast.BoolOp) -> Any:
        values = [self.value(each) for each in node.values]
        if UNKNOWN in values:
            return UNKNOWN
        return all(values) if isinstance(node.op, ast.And) else any(values)

    def _slice(self, node: ast.Slice) -> Any:
        parts = [self.value(each) if each else None for each in (node.lower, node.upper, node.step)]
        return UNKNOWN if UNKNOWN in parts else slice(*parts)

    def _subscript(self, node: ast.Subscript) -> Any:
        value, at = self.value(node.value), self.value(node.slice)
        return UNKNOWN if value is UNKNOWN or at is UNKNOWN else value[at]

    def _call(self, node: ast.Call) -> Any:
        text = ast.unparse(node.func)
        if text == f"self.{self.matrix}":
            return np.arange(TOKENS * self.rows).reshape(1, TOKENS, self.rows)
        if text == "getattr" and ast.unparse(node.args[0]) in ("config", "self.config"):
            found = self.config.get(self.value(node.args[1]), UNKNOWN)
            return self.value(node.args[2]) if found is UNKNOWN and len(node.args) > 2 else found
        items = self.value(ast.Tuple(node.args, ast.Load()))
        named = {each.arg or "": self.value(each.value) for each in node.keywords}
        if items is UNKNOWN or UNKNOWN in [each for each in named.values() if not is_array(each)]:
            return UNKNOWN
        own = next((each for each in self.part.functions if text == f"self.{each.name}"), None)
        if own is not None and not named and len(own.args.args) == len(items) + 1:
            inner = _Reading(self.part, self.config, self.matrix, self.rows, dict(self.values))
            inner.values |= dict(zip((each.arg for each in own.args.args[1:]), items, strict=True))
            return inner.run(own.body)
        if not isinstance(node.func, ast.Attribute) or node.func.attr not in MOVED:
            return UNKNOWN
        array, *rest = items if text.startswith("torch.") else (self.value(node.func.value), *items)
        return moved(node.func.attr, array, *rest, **named) if is_array(array) else UNKNOWN
