"""The code of transformers' modelling file that one architecture runs, as text: it is parsed, and never run.

Statements are compared as `ast.unparse` writes them, after these replacements: the architecture's name is removed from
names of classes, and an attribute that `__init__` copies from the config is that key: `self.scale` is `config.scale`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

UNKNOWN = object()  # the value of a test that the config alone does not decide
SKIPPED = ("Norm", "PreTrainedModel")  # the kind of norm is read elsewhere (`hints`)


@dataclass(slots=True)
class Part:
    """A class or a function: the statements that run for a config, in order, the expressions of attributes, and by
    attribute the test of a layer's number by which `__init__` chooses between two. `every`: all statements,
    with `else` and `end` of each test. `arguments`: those of `__init__`, with their defaults."""

    name: str
    statements: list[str] = field(default_factory=list[str])
    attributes: dict[str, str] = field(default_factory=dict[str, str])
    choices: dict[str, str] = field(default_factory=dict[str, str])
    every: list[str] = field(default_factory=list[str])
    arguments: str = ""


def models_folder() -> Path | None:
    """The folder of transformers' families, None if transformers is not installed."""
    spec = find_spec("transformers")
    return Path(spec.origin).parent / "models" if spec and spec.origin else None


def modelling_file(model_type: str) -> Path | None:
    """The modelling file of a model type, None if there is none."""
    folder, module = models_folder(), model_type.replace("-", "_").removesuffix("_text")
    file = folder / module / f"modeling_{module}.py" if folder else None
    return file if file is not None and file.is_file() else None


def parts_of(file: Path, architecture: str, config: Mapping[str, Any]) -> dict[str, Part]:
    """The classes and functions of a file that a class refers to, itself first; {} if the file does not have it.

    Branches that the values of `config` exclude are left out.
    """
    tree = ast.parse(file.read_text("utf-8"))
    nodes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
    title = architecture.removesuffix("ForCausalLM").removesuffix("LMHeadModel")
    found: dict[str, Part] = {}
    todo = [architecture] if architecture in nodes else []
    while todo:
        name = todo.pop(0)
        if name in found:
            continue
        node = nodes[name]
        part = _part(node, name.removeprefix(title), config)
        assigned = [ast.unparse(each) for each in ast.walk(node) if isinstance(each, ast.Assign)]  # one of two classes
        used = {word for text in (*part.statements, *assigned) for word in re.findall(r"\w+", text)}
        todo += [each for each in nodes if each in used]
        part.statements = [text.replace(title, "") for text in part.statements]
        part.attributes = {key: text.replace(title, "") for key, text in part.attributes.items()}
        found[name] = part
    return found


def _part(node: ast.ClassDef | ast.FunctionDef, name: str, config: Mapping[str, Any]) -> Part:
    part = Part(name)
    functions = [node] if isinstance(node, ast.FunctionDef) else [
        each for each in node.body if isinstance(each, ast.FunctionDef)
    ]  # fmt: skip
    for function in [each for each in functions if each.name == "__init__"]:
        part.arguments = ast.unparse(function.args)
        for each in ast.walk(function):
            if isinstance(each, ast.Assign) and isinstance(target := each.targets[0], ast.Attribute):
                part.attributes[target.attr] = _text(each.value, {})
        part.choices = {
            name: _text(test, part.attributes) for each in ast.walk(function) for name, test in _choices(each)
        }
    if name.endswith(SKIPPED):
        return part
    keys = {name: _chosen(text, config) for name, text in part.attributes.items()}
    keys = {name: text for name, text in keys.items() if text.startswith("config.") and _is_key(text)}
    for function in [each for each in functions if each.name == "forward" or each is node or _is_helper(each)]:
        part.statements += _live(function.body, keys, config)
        part.every += _live(function.body, keys, {}, marks=True)
    return part


def _chosen(text: str, config: Mapping[str, Any]) -> str:
    """`config.KEY` for an expression that is this key if its value is an integer, as it is in the config."""
    match = re.match(r"(config\.(\w+)) if isinstance\(config\.\2, int\) else ", text)
    return match[1] if match and type(config.get(match[2])) is int else text


def _choices(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """The attributes that a statement sets to one of two values, and its test."""
    if isinstance(node, ast.Assign) and isinstance(node.value, ast.IfExp):
        yield from ((name, node.value.test) for name in _targets([node]))
    elif isinstance(node, ast.If):
        yield from ((name, node.test) for name in _targets(node.body) if name in _targets(node.orelse))


def _targets(body: list[ast.stmt]) -> list[str]:
    targets = [each.targets[0] for each in body if isinstance(each, ast.Assign)]
    return [each.attr for each in targets if isinstance(each, ast.Attribute)]


def _is_helper(function: ast.FunctionDef) -> bool:
    names = [each.id for each in function.decorator_list if isinstance(each, ast.Name)]
    return function.name not in ("__init__", "extra_repr", "_init_weights") and not names


def _is_key(text: str) -> bool:
    return text.removeprefix("config.").removesuffix("[layer_idx]").isidentifier()


class _Keys(ast.NodeTransformer):
    """Replaces attributes by the config keys of the same value."""

    def __init__(self, keys: Mapping[str, str]) -> None:
        self.keys = keys

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        text = ast.unparse(node)
        if text.startswith("self.config."):
            return ast.parse(text.removeprefix("self."), mode="eval").body
        if text.startswith("self.") and (key := self.keys.get(node.attr)) and isinstance(node.value, ast.Name):
            return ast.parse(key, mode="eval").body
        return self.generic_visit(node)


def _text(node: ast.AST, keys: Mapping[str, str]) -> str:
    return ast.unparse(_Keys(keys).visit(ast.parse(ast.unparse(node))))


def _live(
    body: list[ast.stmt], keys: Mapping[str, str], config: Mapping[str, Any], *, marks: bool = False
) -> Iterator[str]:
    """The statements that can run; a test that the config does not decide is a statement `if …`. `marks`: with the
    statements `else` and `end` of such a test."""
    for node in body:
        if isinstance(node, ast.If):
            value = _value(_Keys(keys).visit(ast.parse(ast.unparse(node.test), mode="eval")).body, config)
            if value is UNKNOWN:
                yield f"if {_text(node.test, keys)}"
            yield from _live(node.body if value is not False else [], keys, config, marks=marks)
            if marks and value is UNKNOWN and node.orelse:
                yield "else"
            yield from _live(node.orelse if value is not True else [], keys, config, marks=marks)
            if marks and value is UNKNOWN:
                yield "end"
        elif isinstance(node, ast.For | ast.While | ast.With | ast.FunctionDef):
            yield from _live(node.body, keys, config, marks=marks)
        elif isinstance(node, ast.Return | ast.Assign | ast.AugAssign | ast.AnnAssign) or (
            isinstance(node, ast.Expr) and not isinstance(node.value, ast.Constant)
        ):
            yield _text(node, keys)


def _value(test: ast.expr, config: Mapping[str, Any]) -> object:
    """True or False if values of the config decide a test; UNKNOWN otherwise."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        value = _value(test.operand, config)
        return value if value is UNKNOWN else not value
    if isinstance(test, ast.BoolOp):
        values = [_value(each, config) for each in test.values]
        decisive = isinstance(test.op, ast.Or)
        if decisive in values:
            return decisive
        return UNKNOWN if UNKNOWN in values else not decisive
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Is | ast.IsNot):
        key = _key(test.left)
        none = isinstance(test.comparators[0], ast.Constant) and test.comparators[0].value is None
        if not none or key not in config:
            return UNKNOWN
        return (config[key] is None) == isinstance(test.ops[0], ast.Is)
    key = _key(test)
    if isinstance(test, ast.Attribute) and ast.unparse(test) == "self.training":
        return False
    return bool(config[key]) if key in config else UNKNOWN


def _key(node: ast.expr) -> str:
    text = ast.unparse(node)
    return text.removeprefix("config.") if text.startswith("config.") and _is_key(text) and "[" not in text else ""
