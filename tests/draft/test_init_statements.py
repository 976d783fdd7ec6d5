"""The values of attributes that the statements of `__init__` set, against those that Python sets."""

from __future__ import annotations

import ast
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from bringup.compile.draft.modelling.decided import UNKNOWN, decided, run_init

CONFIG: dict[str, Any] = {"w": 5, "lim": 3, "extra": False, "pair": [7, None]}
# By name: statements, and the attributes whose values the config decides.
STATEMENTS: dict[str, tuple[str, set[str]]] = {
    "an annotated assignment": ("self.a: int = config.w", {"a"}),
    "an annotation": ("self.a = config.w\nself.a: int", {"a"}),
    "two targets": ("self.a = self.b = config.w", {"a", "b"}),
    "a tuple": ("self.a, (self.b, self.c) = config.w, [None, config.lim]", {"a", "b", "c"}),
    "an exchange": ("self.a, self.b = 1, 2\nself.a, self.b = self.b, self.a", {"a", "b"}),
    "a tuple by a condition": ("self.a, self.b = (1, 2) if config.extra else (3, config.w)", {"a", "b"}),
    "a tuple from a key": ("self.a = None\nself.a, self.b = config.pair", set()),
    "a starred target": ("self.a, *self.b = 1, 2, 3", set()),
    "try": ("self.a = None\ntry:\n    self.a = config.w\nexcept OSError:\n    pass", set()),
    "except": ("self.a = None\ntry:\n    raise OSError\nexcept OSError:\n    self.a = config.w", set()),
    "finally": ("self.a = None\ntry:\n    pass\nfinally:\n    self.a = config.w", set()),
    "match": ("self.a = None\nmatch config.w:\n    case 5:\n        self.a = config.w", set()),
    "with": ("self.a = None\nwith context(4) as self.b:\n    self.a = config.w", set()),
    "for": ("self.a = None\nfor self.b in config.pair:\n    self.a = config.w", set()),
    "the end of a loop": ("self.a = None\nfor _ in ():\n    pass\nelse:\n    self.a = config.w", set()),
    "a test in a loop": (
        "self.a = None\nfor _ in range(2):\n    if self.a is not None:\n        self.c = 1\n    self.a = config.w",
        set(),
    ),
    "a return": ("self.a = config.w\nif config.lim == 3:\n    return\nself.a = 1", {"a"}),
    "a return in the other branch": ("self.a = 1\nif config.extra:\n    return\nself.a = config.w", {"a"}),
    "a return in all branches": ("self.a = 1\nif config.extra:\n    return\nelse:\n    return\nself.a = 2", {"a"}),
    "a return that the config does not decide": ("self.a = None\nif context(4):\n    return\nself.a = 1", set()),
    "a return in a loop": ("self.a = None\nfor _ in ():\n    return\nself.a = config.w", set()),
    "a return in try": ("self.a = None\ntry:\n    return\nexcept OSError:\n    pass\nself.a = 1", set()),
    "del": ("self.a = None\nself.b = 2\ndel self.a", {"b"}),
}  # fmt: skip


@pytest.mark.parametrize("name", STATEMENTS)
def test_values_are_those_of_python(name: str) -> None:
    """The value of each attribute is unknown, or that of Python; every attribute has an assignment."""
    text, expected = STATEMENTS[name]
    obj = SimpleNamespace()
    lines = "".join(f"    {line}\n" for line in text.splitlines())
    scope: dict[str, Any] = {"context": nullcontext}
    exec(f"def init(self, config):\n{lines}", scope)
    scope["init"](obj, SimpleNamespace(**CONFIG))
    known: dict[str, Any] = {}
    assignments = [ast.unparse(each) for each in run_init(ast.parse(text).body, CONFIG, known)]
    found = {each.removeprefix("self."): value for each, value in known.items() if value is not UNKNOWN}
    found = {each: value for each, value in found.items() if each != "_"}
    assert found == {each: getattr(obj, each) for each in expected}
    for each, value in vars(obj).items():
        is_none = ast.parse(f"self.{each} is None", mode="eval").body
        assert decided(is_none, CONFIG, known) in (UNKNOWN, value is None)
    assert not any(line.endswith(" = 2") for line in assignments if name == "a return in all branches")
    targets = {line.partition(" = ")[0].removeprefix("self.") for line in assignments}
    assert targets >= vars(obj).keys() - ({"b"} if name in ("for", "with") else set())


def test_items_of_an_expression_are_not_the_expression() -> None:
    text = "self.a, self.b = config.pair"
    assert [ast.unparse(each) for each in run_init(ast.parse(text).body, CONFIG, {})] == [
        "self.a = config.pair[0]",
        "self.b = config.pair[1]",
    ]
