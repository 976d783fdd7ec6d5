"""Tests of transformers' code that the values of a config decide."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any, cast

UNKNOWN = object()  # the value of an expression that the config alone does not decide
MODULE = object()  # that of an attribute that is a module

# Expressions that have one value at inference with the implementation of attention that the modelling file has itself.
ASSUMED: Mapping[str, bool] = {"self.training": False, "is_flash_attention_requested(self.config)": False}
_COMPARED: Mapping[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Is: operator.is_, ast.IsNot: operator.is_not,
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
    ast.In: lambda one, many: one in many, ast.NotIn: lambda one, many: one not in many,
}  # fmt: skip


def decided(test: ast.expr, config: Mapping[str, Any], known: Mapping[str, Any]) -> object:
    """True or False if values of the config decide a test; UNKNOWN otherwise. `known` are the values of attributes."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        value = decided(test.operand, config, known)
        return value if value is UNKNOWN else not value
    if isinstance(test, ast.BoolOp):
        values = [decided(each, config, known) for each in test.values]
        decisive = isinstance(test.op, ast.Or)
        if decisive in values:
            return decisive
        return UNKNOWN if UNKNOWN in values else not decisive
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        one, other = (_value(each, config, known) for each in (test.left, test.comparators[0]))
        compared = _COMPARED[type(test.ops[0])]
        if UNKNOWN in (one, other) or (MODULE in (one, other) and None not in (one, other)):
            return UNKNOWN
        try:
            return bool(compared(one, other))
        except TypeError:
            return UNKNOWN
    value = _value(test, config, known)
    return value if value is UNKNOWN else bool(value)


def _value(node: ast.expr, config: Mapping[str, Any], known: Mapping[str, Any]) -> object:
    """The value of a key, of an attribute or of a constant; UNKNOWN for another expression."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Tuple | ast.List):
        items = [_value(each, config, known) for each in node.elts]
        return UNKNOWN if UNKNOWN in items else items
    text = ast.unparse(node)
    if text in ASSUMED:
        return ASSUMED[text]
    if text.startswith("config.") and text.removeprefix("config.").isidentifier():
        return config.get(text.removeprefix("config."), UNKNOWN)
    return known.get(text, UNKNOWN)


def run_init(
    body: list[ast.stmt], config: Mapping[str, Any], known: dict[str, Any], *, certain: bool = True
) -> Generator[ast.Assign, None, object]:
    """The assignments of `__init__` that this config can reach. The values of their targets are written to `known`,
    by their text: UNKNOWN if the config does not decide them. Returns whether the statements end `__init__`: True,
    False, or UNKNOWN."""
    ended: object = False
    for node in body:
        ends: object = False
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
            yield from _assigned(node, config, known, certain=certain)
        elif isinstance(node, ast.If):
            ends = yield from _run_branches(node, config, known, certain=certain)
        elif isinstance(node, ast.Return):
            ends = True
        elif not isinstance(node, ast.FunctionDef | ast.ClassDef):
            known |= dict.fromkeys(set_in(node), UNKNOWN)  # also for tests before the assignment, in a loop
            for block in blocks_of(node):
                inner = yield from run_init(block, config, known, certain=False)
                ends = ends if inner is False else UNKNOWN
        if ends is True:
            return True
        ended, certain = (UNKNOWN, False) if ends is UNKNOWN else (ended, certain)
    return ended


def _assigned(
    node: ast.Assign | ast.AnnAssign | ast.AugAssign,
    config: Mapping[str, Any],
    known: dict[str, Any],
    *,
    certain: bool,
) -> Iterator[ast.Assign]:
    """The single assignments of a statement, whose values are written to `known`."""
    if isinstance(node, ast.AugAssign):
        known[ast.unparse(node.target)] = UNKNOWN
        yield ast.copy_location(ast.Assign([node.target], ast.BinOp(node.target, node.op, node.value)), node)
        return
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    value = node.value and chosen(node.value, config, known)
    pairs = [pair for target in targets for pair in _pairs(target, value)] if value else []
    found = [_value_or_module(each, config, known) for _, each in pairs]  # before any of them is set
    for (target, each), value in zip(pairs, found, strict=True):
        known[ast.unparse(target)] = value if certain else UNKNOWN
        yield ast.copy_location(ast.Assign([target], each), node)


def _run_branches(
    node: ast.If, config: Mapping[str, Any], known: dict[str, Any], *, certain: bool
) -> Generator[ast.Assign, None, object]:
    value = decided(node.test, config, known)
    ends = list[object]()
    for block, excluded in ((node.body, False), (node.orelse, True)):
        if value is not excluded:
            ends.append((yield from run_init(block, config, known, certain=certain and value is not UNKNOWN)))
    return one_of(ends)


def one_of(ends: list[object]) -> object:
    """Whether a branch ends a function, of those that a test leaves: UNKNOWN if they differ."""
    return ends[0] if all(each is ends[0] for each in ends) else UNKNOWN


def set_in(node: ast.AST) -> Iterator[str]:
    """The names and attributes that a node sets or deletes: assignments, loops, `with`, `except`, patterns, `def`."""
    for each in ast.walk(node):
        if isinstance(getattr(each, "ctx", None), ast.Store | ast.Del):
            yield ast.unparse(each)
        names = [getattr(each, word, None) for word in ("name", "rest", "asname")]
        yield from (name for name in names if isinstance(name, str))


def blocks_of(node: ast.AST) -> Iterator[list[ast.stmt]]:
    """All blocks of a compound statement, in order: of `for`, `while`, `with`, `try`, `match`."""
    for _, value in ast.iter_fields(node):
        items = cast("list[Any]", value) if isinstance(value, list) else []
        if items and isinstance(items[0], ast.stmt):
            yield items
        for each in items:
            if isinstance(each, ast.ExceptHandler | ast.match_case):
                yield each.body


def _pairs(target: ast.expr, value: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
    """The single targets of an assignment, and their values: `f(x)[1]` for the second of `self.a, self.b = f(x)`."""
    if not isinstance(target, ast.Tuple | ast.List):
        yield target, value
        return
    items = value.elts if isinstance(value, ast.Tuple | ast.List) else []
    starred = any(isinstance(each, ast.Starred) for each in (*target.elts, *items))
    literal = len(items) == len(target.elts) and not starred
    for at, each in enumerate(target.elts):
        part = items[at] if literal else ast.Subscript(value, ast.Constant(... if starred else at))
        yield from _pairs(each.value if isinstance(each, ast.Starred) else each, part)


def _value_or_module(node: ast.expr, config: Mapping[str, Any], known: Mapping[str, Any]) -> object:
    return MODULE if isinstance(node, ast.Call) and _is_module(node) else _value(node, config, known)


def chosen(node: ast.expr, config: Mapping[str, Any], known: Mapping[str, Any]) -> ast.expr:
    """The branch of a conditional expression that the config decides on."""
    while isinstance(node, ast.IfExp) and (value := decided(node.test, config, known)) is not UNKNOWN:
        node = node.body if value else node.orelse
    return node


def defaults_of(function: ast.FunctionDef, passed: frozenset[str] | None) -> dict[str, Any]:
    """The constant defaults of arguments that no call passes; `passed` None: they are not known."""
    if passed is None:
        return {}
    given = function.args
    names = [each.arg for each in (*given.posonlyargs, *given.args)]
    pairs = zip(names[len(names) - len(given.defaults) :], given.defaults, strict=True)
    keywords = zip((each.arg for each in given.kwonlyargs), given.kw_defaults, strict=True)
    every = [*pairs, *keywords]
    return {name: each.value for name, each in every if isinstance(each, ast.Constant) and name not in passed}


def _is_module(call: ast.Call) -> bool:
    """Whether a call creates a module: of torch.nn, or of a class, which has a capital first."""
    text = ast.unparse(call.func)
    return text.startswith("nn.") or text[:1].isupper()
