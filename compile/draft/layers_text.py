"""The text that states which layers have experts, if others do not.

transformers' code decides by a test of the layer's number and of keys of config.json. The test is written if it gives
the layers whose tensors have experts; otherwise their numbers are written, with a question.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from bringup.compile.draft.facts import Facts
from bringup.compile.draft.questions import comment
from bringup.compile.draft.quoted import one_line, quoted, tuple_of
from bringup.shown import short

# What a test may consist of, beside names, keys and constants.
PARTS = (
    ast.Add, ast.And, ast.BinOp, ast.BoolOp, ast.Compare, ast.Eq, ast.Expression, ast.FloorDiv, ast.Gt, ast.GtE, ast.In,
    ast.Load, ast.Lt, ast.LtE, ast.Mod, ast.Not, ast.NotEq, ast.NotIn, ast.Or, ast.Sub, ast.UnaryOp, ast.USub,
)  # fmt: skip
# Variables that `from_fields` of a draft has already.
TAKEN = frozenset(
    {"cls", "common", "fields", "head_dim", "heads", "hidden", "index", "key_heads", "layers", "positions", "sparse"}
    | {"used", "window", "windows"}
)


@dataclass(frozen=True, slots=True)
class LayerTest:
    """`text` is an expression of `index` and of variables. `reads` are the expressions that read these, `values` their
    values for this config, and `keys` the keys that they read."""

    text: str
    reads: Mapping[str, str]
    values: Mapping[str, Any]
    keys: frozenset[str]

    def layers(self, count: int) -> list[bool] | None:
        """For each layer, whether the test is true; None if it cannot be evaluated."""
        names: dict[str, Any] = {"__builtins__": {}, **self.values}
        try:
            return [bool(eval(self.text, {**names, "index": index})) for index in range(count)]
        except (ArithmeticError, TypeError):
            return None


def sparse_text(facts: Facts) -> list[str]:
    """The lines that define `sparse`: for each layer, whether it has experts."""
    known = [index in facts.roles.sparse for index in range(facts.sizes.layers)]
    test = layer_test(facts)
    stated = test.layers(len(known)) if test else None
    if test is not None and stated in (known, [not each for each in known]):
        text = test.text if stated == known else f"not ({test.text})"
        reads = [f"        {name} = {read}\n" for name, read in test.reads.items()]
        return [
            *reads,
            f"        sparse = tuple(\n            {text}\n            for index in range(layers)\n        )\n",
        ]
    numbers = sorted(facts.roles.sparse)
    question = facts.ask(
        "no known key of config.json states which layers have experts: the tensors' layers are written"
    )
    of_code = facts.hints.meaning.layer_test if facts.hints.meaning else ""
    more = f"        #      transformers: {one_line(short(of_code))}\n" if of_code else ""
    return [
        comment(question) + more,
        f"        sparse = tuple(index in {tuple_of(numbers)} for index in range(layers))\n",
    ]


def every_layer_keys(facts: Facts) -> frozenset[str]:
    """The keys by which transformers' code gives every layer experts, as the tensors have them."""
    test = layer_test(facts) if facts.mlp == "experts" and not facts.dense and not facts.roles.sparse else None
    stated = test.layers(facts.sizes.layers) if test else None
    return test.keys if test is not None and stated is not None and len(set(stated)) == 1 else frozenset()


def layer_test(facts: Facts) -> LayerTest | None:
    """The test of transformers' code, None if there is none or if it is more than comparisons of keys and numbers."""
    text = facts.hints.meaning.layer_test if facts.hints.meaning else ""
    if not text:
        return None
    rewriting = _Rewriting(facts)
    tree = rewriting.visit(ast.parse(text, mode="eval"))
    if rewriting.other:
        return None
    return LayerTest(ast.unparse(tree), rewriting.reads, rewriting.values, frozenset(rewriting.keys))


class _Rewriting(ast.NodeTransformer):
    """Replaces the layer's number by `index`, and keys by variables; `other`: whether there is anything else."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self.reads: dict[str, str] = {}
        self.values: dict[str, Any] = {}
        self.keys: set[str] = set()
        self.other = False

    def visit(self, node: ast.AST) -> Any:
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod | ast.FloorDiv):
            node.right = self._key(node.right, divisor=True)
            node.left = self.visit(node.left)
            return node
        if isinstance(node, ast.Subscript):
            by_layer = isinstance(node.slice, ast.Name) and node.slice.id == "layer_idx"
            self.other |= not by_layer
            items = self._key(node.value, divisor=False)
            item = ast.Attribute(items, "get", ast.Load())
            return ast.Call(item, [ast.Name("index", ast.Load())], [])
        if isinstance(node, ast.Attribute):
            return self._key(node, divisor=False, whole=True)
        if isinstance(node, ast.Name):
            self.other |= node.id != "layer_idx"
            return ast.Name("index", ast.Load())
        self.other |= not isinstance(node, (*PARTS, ast.Constant))
        return self.generic_visit(node)

    def _key(self, node: ast.expr, *, divisor: bool, whole: bool = False) -> ast.expr:
        """The variable of a key; a list that is read at an index is a table by index, which may lack some."""
        if divisor and isinstance(node, ast.Constant) and node.value:
            return node
        if not (isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "config"):
            self.other = True
            return node
        key = self.facts.hints.aliases.get(node.attr, node.attr)
        absent = self.facts.hints.defaults.get(key)
        value = self.facts.raw.get(key, absent)
        name = f"{node.attr}_" if node.attr in TAKEN else node.attr
        read = _read(key, value, absent, divisor=divisor)
        if read is None or (divisor and type(value) is not int):
            self.other = True
            return node
        items = cast("list[Any]", value) if isinstance(value, list) else None
        if not whole and not divisor:
            self.other |= items is None
            read, value = f"dict(enumerate({read}))", dict(enumerate(items or []))
        elif items is None and value is None:
            value = ()
        self.other |= self.reads.get(name, read) != read
        self.reads[name], self.values[name] = read, value
        self.keys.add(key)
        return ast.Name(name, ast.Load())


def _read(key: str, value: Any, absent: Any, *, divisor: bool) -> str | None:
    """The expression that reads a key whose value has one of the types that a test can have, None for another."""
    default = f", {quoted(absent)}" if isinstance(absent, bool | int) else ""
    if type(value) is bool:
        return f"fields.get({quoted(key)}, bool{default})"
    if type(value) is int:
        if divisor:
            return f"fields.size({quoted(key)}{default})" if value > 0 else None
        return f"fields.get({quoted(key)}, int{default})"
    if value is not None and not isinstance(value, list):
        return None
    kinds = {type(each) for each in cast("list[Any]", value or [])}
    if kinds == {str}:
        return f"fields.strings({quoted(key)}) or ()"
    return f"fields.indices({quoted(key)})" if kinds <= {int} else None
