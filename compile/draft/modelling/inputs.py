"""The optional inputs of a model that are None in each of its classes, because no caller passes another value."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping

from bringup.compile.draft.modelling.decided import set_in
from bringup.compile.draft.modelling.part import Part

# The inputs of a step of generation; others are of training, of an encoder, or of other uses.
PASSED = frozenset(
    {"input_ids", "attention_mask", "position_ids", "cache", "past_key_values", "use_cache", "logits_to_keep"}
)
NOT_PARSED = ("if ", "match ", "try")
BINDING = (ast.For, ast.NamedExpr, ast.comprehension)


def absent_inputs(architecture: str, parts: Mapping[str, Part]) -> frozenset[str]:
    """The arguments of the architecture's `forward` that a step omits, if every call of a module passes them on under
    their own name."""
    forwards = {name: each for name, part in parts.items() for each in part.functions if each.name == "forward"}
    if architecture not in forwards:
        return frozenset()
    names = set(_optional(forwards[architecture])) - PASSED
    for part in parts.values():
        for function in part.functions:
            loops = dict(_loops(function))
            for call in (node for node in ast.walk(function) if isinstance(node, ast.Call)):
                names -= {each.arg for each in call.keywords if each.arg and not _is(each.value, each.arg)}
                for name in _called(call, part, loops, parts):
                    names -= set(_other_arguments(call, forwards.get(name)))
    for function in forwards.values():  # an argument that is required, or has another default, can have a value
        names -= {each.arg for each in _arguments(function)} - set(_optional(function))
    return frozenset(names)


def assigned_in(parts: Mapping[str, Part]) -> frozenset[str]:
    """The variables to which statements that run assign another value than None, or loops."""
    texts = [text for part in parts.values() for text in part.statements if not text.startswith(NOT_PARSED)]
    found = {name for text in texts if not text.endswith(" = None") for name in set_in(ast.parse(text))}
    loops = (node for part in parts.values() for each in part.functions for node in ast.walk(each))
    found |= {name for node in loops if isinstance(node, BINDING) for name in set_in(node.target)}
    return frozenset(found)


def _is(node: ast.expr, name: str) -> bool:
    return (isinstance(node, ast.Name) and node.id == name) or (isinstance(node, ast.Constant) and node.value is None)


def _arguments(function: ast.FunctionDef) -> list[ast.arg]:
    return [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]


def _optional(function: ast.FunctionDef) -> Iterator[str]:
    """The arguments whose default is None."""
    given = function.args
    names = [each.arg for each in (*given.posonlyargs, *given.args)]
    pairs = [*zip(names[len(names) - len(given.defaults) :], given.defaults, strict=True)]
    pairs += [(each.arg, value) for each, value in zip(given.kwonlyargs, given.kw_defaults, strict=True) if value]
    yield from (name for name, value in pairs if isinstance(value, ast.Constant) and value.value is None)


def _other_arguments(call: ast.Call, function: ast.FunctionDef | None) -> Iterator[str]:
    """The arguments of a function that a call passes by position, with other values than variables of their names."""
    if function is not None:
        names = [each.arg for each in (*function.args.posonlyargs, *function.args.args)][1:]
        if any(isinstance(each, ast.Starred) for each in call.args):
            yield from names
        yield from (name for name, value in zip(names, call.args, strict=False) if not _is(value, name))


def _loops(function: ast.FunctionDef) -> Iterator[tuple[str, str]]:
    """The variables of loops over an attribute, and the attribute."""
    for node in ast.walk(function):
        if isinstance(node, ast.For) and (match := re.search(r"self\.(\w+)", ast.unparse(node.iter))):
            yield from ((each.id, match[1]) for each in ast.walk(node.target) if isinstance(each, ast.Name))


def _called(call: ast.Call, part: Part, loops: Mapping[str, str], parts: Mapping[str, Part]) -> Iterator[str]:
    """The classes whose `forward` a call may run: those in the expression of the attribute that is called."""
    text = ast.unparse(call.func)
    attribute = loops.get(text, text.removeprefix("self."))
    words = set(re.findall(r"\w+", part.attributes.get(attribute, "")))
    yield from (name for name, other in parts.items() if {name, other.name} & words)
