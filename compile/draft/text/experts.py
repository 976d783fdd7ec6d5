"""The text of a drafted config about experts: their sizes, the routing, and which layers have them.

transformers' code decides by a test of the layer's number and of keys of config.json. The test is written if it gives
the layers whose tensors have experts; otherwise their numbers are written, with a question.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from bringup.compile.draft.facts.facts import Facts
from bringup.compile.draft.facts.questions import comment
from bringup.compile.draft.facts.quoted import one_line, quoted, tuple_of
from bringup.compile.draft.modelling.routing import Routing
from bringup.compile.draft.text.meaning import Written
from bringup.shown import short

# The operations that a test may have; its operands are names, keys and constants.
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


def experts_text(facts: Facts) -> Written:
    """The fields of experts: their number and width, the routing, and the layers that have them."""
    written = Written()
    if facts.mlp != "experts":
        return written
    keys = facts.keys
    width = f"fields.size({quoted(keys.get('expert_width', keys['intermediate_size']))})"
    if facts.routing:
        written.add("routing", "RoutingConfig", _routing(facts, facts.routing))
    else:
        per_token = quoted(keys.get("per_token", "num_experts_per_tok"))
        written.add("num_experts", "int", f"fields.experts({quoted(keys['experts'])}, {facts.sizes.e})")
        written.add("experts_per_token", "int", f"fields.size({per_token}, 2)")
    written.add("expert_ffn", "int", width)
    if facts.shared and "shared_width" in keys:
        written.add("shared_ffn", "int", f"fields.size({quoted(keys['shared_width'])})")
    elif facts.shared and "shared_count" not in keys:  # as wide as an MLP
        written.add("shared_ffn", "int", f"fields.size({quoted(keys['intermediate_size'])})")
    elif facts.shared:  # as many routed experts as a key states
        written.add("shared_ffn", "int", f"fields.size({quoted(keys['shared_count'])}) * {width}")
    if facts.routing and facts.routing.least:
        written.add("least", "float", _get(facts, facts.routing.least, "float", 0.0))
    if facts.hints.meaning and facts.hints.meaning.clamped:
        alpha, limit = facts.hints.meaning.clamped
        written.add("alpha", "float", _get(facts, alpha, "float", 1.0))
        written.add("limit", "float", f"fields.positive({quoted(_key(facts, limit))}, {_absent(facts, limit, 1.0)})")
    if not facts.routing:
        before, value = _normalise(facts)
        written.add("normalise", "bool", value)
        written.values[-1] = before + written.values[-1]
    if facts.dense:
        written.add("sparse", "tuple[bool, ...]", "sparse")
        written.lines += _sparse(facts)
    return written


def _normalise(facts: Facts) -> tuple[str, str]:
    """A question or '', and whether the weights of the chosen experts add up to 1."""
    known = facts.hints.meaning.normalises if facts.hints.meaning else None
    if "norm_topk_prob" in facts.raw and "norm_topk_prob" not in facts.hints.inert:
        known = None
    if known is not None:
        return "", quoted(known)
    if "norm_topk_prob" in facts.raw:
        return "", f'fields.get("norm_topk_prob", bool, {quoted(facts.default("norm_topk_prob", False))})'
    question = facts.ask("do the shares of the chosen experts add up to 1?", "normalise=True", "normalise=False")
    return comment(question, " " * 12), "True"


def _routing(facts: Facts, routing: Routing) -> str:
    """The value of the field `routing`, from the keys that transformers' router reads; a key that it lacks is 1."""
    experts = facts.keys["experts"]
    if not routing.groups:
        normalise = _get(facts, routing.normalise, "bool", False) if routing.normalise else quoted(routing.always)
        factor = _get(facts, routing.factor, "float", 1.0) if routing.factor else "1.0"
        return (
            "RoutingConfig(\n"
            f"                experts=fields.experts({quoted(experts)}, {facts.sizes.e}),\n"
            f"                per_token=fields.size({quoted(_key(facts, routing.per_token))}, "
            f"{_absent(facts, routing.per_token, 1)}),\n"
            f"                groups=1, topk_groups=1, normalise={normalise}, factor={factor},\n            )"
        )
    own = {
        "n_routed_experts": experts, "num_experts_per_tok": _key(facts, routing.per_token),
        "n_group": _key(facts, routing.groups), "topk_group": _key(facts, routing.topk_groups),
        "norm_topk_prob": _key(facts, routing.normalise), "routed_scaling_factor": _key(facts, routing.factor),
    }  # fmt: skip
    own = {theirs: ours for theirs, ours in own.items() if theirs != ours}
    keys = f" keys={quoted(own)}," if own else ""
    return (
        "RoutingConfig.from_fields(\n"
        f"                fields, experts={facts.sizes.e}, per_token={_absent(facts, routing.per_token, 1)}, "
        f"groups={_absent(facts, routing.groups, 1)}, topk_groups={_absent(facts, routing.topk_groups, 1)},\n"
        f"                factor={_absent(facts, routing.factor, 1.0)}, "
        f"normalise={_absent(facts, routing.normalise, False)},{keys}\n            )"
    )


def _key(facts: Facts, name: str) -> str:
    """The key of config.json by the name that the code has for it."""
    return facts.hints.aliases.get(name, name)


def _absent(facts: Facts, name: str, otherwise: float) -> str:
    """The value of an absent key."""
    found = facts.default(_key(facts, name), otherwise)
    return quoted(found if isinstance(found, bool | int | float) else otherwise)


def _get(facts: Facts, name: str, kind: str, otherwise: float) -> str:
    return f"fields.get({quoted(_key(facts, name))}, {kind}, {_absent(facts, name, otherwise)})"


def _sparse(facts: Facts) -> list[str]:
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
    kinds = {type(each) for each in cast("list[object]", value or [])}
    if kinds == {str}:
        return f"fields.strings({quoted(key)}) or ()"
    return f"fields.indices({quoted(key)})" if kinds <= {int} else None
