"""The code of transformers' modelling file that one architecture runs, as text: it is parsed, and never run.

Statements are compared as `ast.unparse` writes them, after these replacements: the architecture's name is removed from
names of classes, and an attribute that `__init__` copies from the config is that key: `self.scale` is `config.scale`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bringup.compile.draft.modelling.decided import defaults_of, run_init, set_in
from bringup.compile.draft.modelling.inputs import absent_inputs, assigned_in
from bringup.compile.draft.modelling.live import Values, is_key, live_statements, text_of
from bringup.compile.draft.modelling.part import Part

Nodes = Mapping[str, ast.ClassDef | ast.FunctionDef]
SKIPPED = ("Norm", "PreTrainedModel")  # the kind of norm is read elsewhere (`hints`)


@dataclass(frozen=True, slots=True)
class Uses:
    """How the classes of a file use each other. `passed`: see `passed_to`. `outside`: the names of attributes whose
    values other classes set, so that `__init__` does not show them. `absent`: inputs of methods that are None."""

    passed: Mapping[str, frozenset[str]] = field(default_factory=dict[str, frozenset[str]])
    outside: frozenset[str] = frozenset()
    absent: frozenset[str] = frozenset()


def models_folder() -> Path | None:
    """The folder of transformers' families, None if transformers is not installed."""
    spec = find_spec("transformers")
    return Path(spec.origin).parent / "models" if spec and spec.origin else None


def modelling_file(model_type: str, architecture: str) -> Path | None:
    """The modelling file of a model type, or else one that defines the architecture's class; None without either."""
    folder, module = models_folder(), model_type.replace("-", "_").removesuffix("_text")
    if folder is None:
        return None
    own = folder / module / f"modeling_{module}.py"
    if own.is_file() or not architecture:
        return own if own.is_file() else None
    line = f"\nclass {architecture}("
    return next((file for file in sorted(folder.glob("*/modeling_*.py")) if line in file.read_text("utf-8")), None)


def parts_of(file: Path, architecture: str, config: Mapping[str, Any]) -> dict[str, Part]:
    """The classes and functions of a file that a class refers to, itself first; {} if the file does not have it.

    Branches that the values of `config` exclude are left out, and those of arguments of `__init__` that no call passes.
    """
    tree = ast.parse(file.read_text("utf-8"))
    nodes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
    found = _reached(nodes, architecture, config, Uses())
    uses = Uses(passed_to(nodes, found), set_from_outside(found), absent_inputs(architecture, found))
    found = _reached(nodes, architecture, config, uses)
    while changed := uses.absent & assigned_in(found):  # a class assigns the input, and may pass it on
        uses = replace(uses, absent=uses.absent - changed)
        found = _reached(nodes, architecture, config, uses)
    return found


def _reached(nodes: Nodes, architecture: str, config: Mapping[str, Any], uses: Uses) -> dict[str, Part]:
    title = architecture.removesuffix("ForCausalLM").removesuffix("LMHeadModel")
    found: dict[str, Part] = {}
    todo = [architecture] if architecture in nodes else []
    while todo:
        name = todo.pop(0)
        if name in found:
            continue
        node = nodes[name]
        part = _part(node, name.removeprefix(title), config, uses, uses.passed.get(name))
        used = {word for text in (*part.statements, *part.reached) for word in re.findall(r"\w+", text)}
        todo += [each for each in nodes if each in used]
        part.statements = [text.replace(title, "") for text in part.statements]
        part.attributes = {key: text.replace(title, "") for key, text in part.attributes.items()}
        part.of_any_config = {key: text.replace(title, "") for key, text in part.of_any_config.items()}
        found[name] = part
    return found


def passed_to(nodes: Nodes, parts: Mapping[str, Part]) -> dict[str, frozenset[str]]:
    """By class, the arguments of `__init__` that the reached calls pass; without classes that others inherit, or that
    are named other than in a call."""
    bases = {ast.unparse(base) for node in nodes.values() if isinstance(node, ast.ClassDef) for base in node.bases}
    found: dict[str, set[str]] = {name: set() for name in parts if name not in bases}
    for tree in (ast.parse(text) for part in parts.values() for text in part.reached):
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        called = {id(call.func) for call in calls}
        for node in (node for node in ast.walk(tree) if isinstance(node, ast.Name) and id(node) not in called):
            found.pop(node.id, None)
        for call in calls:
            name = ast.unparse(call.func)
            if name in found:
                functions = (each for each in parts[name].functions if each.name == "__init__")
                found[name] |= {each for function in functions for each in _passed(call, function)}
    return {name: frozenset(each) for name, each in found.items()}


def set_from_outside(parts: Mapping[str, Part]) -> frozenset[str]:
    """The names of attributes that classes set of other objects than `self`, such as of their modules."""
    functions = [each for part in parts.values() for each in part.functions if each.name in ("__init__", "forward")]
    nodes = [node for function in functions for node in ast.walk(function)]
    attributes = [node for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)]
    return frozenset(node.attr for node in attributes if not _own(node))


def _passed(call: ast.Call, function: ast.FunctionDef) -> Iterator[str]:
    """The arguments of a function that a call of its class passes: all, if it unpacks some."""
    names = [each.arg for each in function.args.args]
    unpacks = any(isinstance(each, ast.Starred) for each in call.args) or any(not each.arg for each in call.keywords)
    yield from names if unpacks else names[1 : len(call.args) + 1]
    yield from (each.arg for each in call.keywords if each.arg)


def _part(
    node: ast.ClassDef | ast.FunctionDef,
    name: str,
    config: Mapping[str, Any],
    uses: Uses,
    passed: frozenset[str] | None,
) -> Part:
    part = Part(name)
    functions = [node] if isinstance(node, ast.FunctionDef) else [
        each for each in node.body if isinstance(each, ast.FunctionDef)
    ]  # fmt: skip
    part.functions = functions
    known: dict[str, Any] = {}
    for function in [each for each in functions if each.name == "__init__"]:
        part.arguments = ast.unparse(function.args)
        known |= defaults_of(function, passed)
        part.of_any_config = dict(_attributes(run_init(function.body, {}, {})))
        for each in run_init(function.body, config, known):
            part.reached.append(ast.unparse(each))
            part.attributes |= _attributes([each])
        part.choices = {
            name: text_of(test, part.attributes) for each in ast.walk(function) for name, test in _choices(each)
        }
    part.attributes |= {name: f"self.{name}" for name in part.attributes.keys() & uses.outside}
    keys = {name: _chosen(text, config) for name, text in part.attributes.items()}
    part.keys = {name: text for name, text in keys.items() if text.startswith("config.") and is_key(text)}
    changed = {text for each in functions if each.name != "__init__" for text in set_in(each)}
    changed |= {f"self.{name}" for name in uses.outside}
    part.known = {text: value for text, value in known.items() if text.startswith("self.") and text not in changed}
    if name.endswith(SKIPPED):
        return part
    every = [each for each in functions if each.name == "forward" or each is node or _is_helper(each)]
    live = {each.name: list(live_statements(each.body, part.keys, _values(part, config, uses, each))) for each in every}
    for function in every:
        if not _is_dead(function.name, live, every):
            part.statements += live[function.name]
            part.every += live_statements(function.body, part.keys, Values({}, {}), marks=True)
    return part


def _values(part: Part, config: Mapping[str, Any], uses: Uses, function: ast.FunctionDef) -> Values:
    """The values at the start of a method: of the attributes, and of the inputs that no step has."""
    own = {each.arg for each in ast.walk(function) if isinstance(each, ast.arg)}
    return Values(config, {**part.known, **dict.fromkeys(uses.absent & own)})


def _attributes(assignments: Iterable[ast.Assign]) -> Iterator[tuple[str, str]]:
    """The names of the attributes that are set, and their expressions."""
    for each in assignments:
        if name := _own(each.targets[0]):
            yield name, text_of(each.value, {})


def _own(target: ast.expr) -> str:
    """The name of an attribute of `self`, '' for another target, such as an attribute of one of its modules."""
    if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self":
        return target.attr
    return ""


def _is_dead(name: str, live: Mapping[str, list[str]], functions: list[ast.FunctionDef]) -> bool:
    """Whether the other methods of a class call a method, but not in the statements that this config reaches."""
    call = f"self.{name}("
    called = any(call in ast.unparse(each) for each in functions if each.name != name)
    return called and not any(call in text for other, texts in live.items() if other != name for text in texts)


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
    names = [_own(each.targets[0]) for each in body if isinstance(each, ast.Assign)]
    return [name for name in names if name]


def _is_helper(function: ast.FunctionDef) -> bool:
    names = [each.id for each in function.decorator_list if isinstance(each, ast.Name)]
    return function.name not in ("__init__", "extra_repr", "_init_weights") and not names
