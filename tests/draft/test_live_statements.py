"""The statements of a forward that the reader of transformers' code finds, against those that Python runs."""

from __future__ import annotations

import ast
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from bringup.compile.draft.modelling.live import Values, live_statements
from bringup.compile.draft.modelling.meaning import meaning_of
from bringup.compile.draft.modelling.parts import parts_of

CONFIG: dict[str, Any] = {"kind": "b", "wide": True}
# By name: a forward of `x`, and the statements that it must not have, because no run reaches them.
BODIES: dict[str, tuple[str, set[str]]] = {
    "try": (
        "try:\n    x = step(1)\nexcept OSError:\n    x = step(2)\nelse:\n    x = step(3)\nfinally:\n    x = step(4)",
        set(),
    ),
    "except": ("try:\n    x = fail(1)\nexcept OSError:\n    x = step(2)\nreturn x", set()),
    "match": ("match x:\n    case 0:\n        x = step(1)\n    case _:\n        x = step(2)", set()),
    "match with a guard": ("match x:\n    case y if y < 1:\n        x = step(1)\n    case _:\n        step(2)", set()),
    "the end of a loop": ("for _ in range(2):\n    x = step(1)\nelse:\n    x = step(2)", set()),
    "while": ("while x < 3:\n    x = step(3)\nelse:\n    x = step(2)", set()),
    "with": ("with context(4):\n    x = step(1)\nx = step(2)", set()),
    "a return that the config decides": ("if config.wide:\n    return step(1)\nx = step(2)", {"x = step(2)"}),
    "a return of the other branch": ("if not config.wide:\n    return step(1)\nx = step(2)", {"return step(1)"}),
    "a return that the config does not decide": ("if x:\n    return step(1)\nx = step(2)", set()),
    "two returns": ("if x:\n    return step(1)\nelse:\n    return step(2)\nx = step(3)", {"x = step(3)"}),
    "a return in try": ("try:\n    return fail(1)\nexcept OSError:\n    x = step(2)\nx = step(3)", set()),
    "a return in a loop": ("for _ in ():\n    return step(1)\nx = step(2)", set()),
    "a pattern that binds": ("y = None\nmatch 3:\n    case y:\n        pass\nif y is not None:\n    step(1)", set()),
    "an import that binds": ("y = None\nimport ast as y\nif y is not None:\n    x = step(1)", set()),
}  # fmt: skip


@pytest.mark.parametrize("name", BODIES)
def test_no_statement_that_runs_is_missing(name: str) -> None:
    text, never = BODIES[name]
    ran: list[int] = []

    def step(number: int) -> int:
        ran.append(number)
        return number

    def fail(number: int) -> int:
        ran.append(number)
        raise OSError

    class config:
        wide, kind = CONFIG["wide"], CONFIG["kind"]

    lines = "".join(f"    {line}\n" for line in text.splitlines())
    scope: dict[str, Any] = {"step": step, "fail": fail, "context": nullcontext, "config": config}
    exec(f"def forward(x):\n{lines}", scope)
    for x in (0, 1):
        scope["forward"](x)
    found = list(live_statements(ast.parse(text).body, {}, Values(CONFIG, {})))
    for number in ran:
        assert any(f"({number})" in each for each in found), f"statement {number} runs"
    assert not never & set(found)


READS = ["if self.extra is not None", "hidden_states = hidden_states * 7"]
CODE = """
class NewPart:
    def __init__(self, config):
        self.scaling = 1.0
        self.extra = None

    def forward(self, hidden_states):
        BODY
        if self.extra is not None:
            hidden_states = hidden_states * 7
        return hidden_states


class NewForCausalLM:
    def __init__(self, config):
        self.part = NewPart(config)
        self.extra = config.wide
        INIT

    def forward(self, input_ids):
        return self.part(input_ids)
"""


def unexplained(folder: Path, init: str = "pass", body: str = "pass") -> list[str]:
    file = folder / "modeling_new.py"
    file.write_text(CODE.replace("INIT", init).replace("BODY", body))
    questions = meaning_of(parts_of(file, "NewForCausalLM", CONFIG)).unexplained
    return [text for texts in questions.values() for text in texts]


@pytest.mark.parametrize(
    ("init", "questions"),
    [
        ("pass", []),
        ("self.part.extra = None", READS),
        ("self.part.other = 3", []),
        (
            "config.extra = 3\n        self.extra = 3",
            ["if self.extra is not None", "hidden_states = hidden_states * 7"],
        ),
    ],
)
def test_an_attribute_that_another_class_sets(init: str, questions: list[str], tmp_path: Path) -> None:
    """`__init__` of the part does not show its value."""
    assert unexplained(tmp_path, init) == questions


def test_an_attribute_of_a_module_is_not_the_class_s_own(tmp_path: Path) -> None:
    file = tmp_path / "modeling_new.py"
    file.write_text(CODE.replace("INIT", "self.part.extra = 3").replace("BODY", "pass"))
    parts = parts_of(file, "NewForCausalLM", CONFIG)
    assert parts["NewForCausalLM"].attributes == {"part": "Part(config)", "extra": "self.extra"}
    assert parts["NewForCausalLM"].of_any_config["extra"] == "config.wide"


@pytest.mark.parametrize(
    ("body", "questions"),
    [
        ("try:\n            hidden_states = self.one()\n        except OSError:\n            pass", ["try"]),
        ("match config.kind:\n            case 'b':\n                hidden_states = self.one(hidden_states)",
         ["match config.kind"]),
        ("match hidden_states.dtype:\n            case _:\n                hidden_states = hidden_states * 5",
         ["match hidden_states.dtype", "hidden_states = hidden_states * 5"]),
    ],
)  # fmt: skip
def test_a_decision_is_a_question(body: str, questions: list[str], tmp_path: Path) -> None:
    assert unexplained(tmp_path, body=body) == questions


@pytest.mark.parametrize(
    ("body", "is_question"),
    [
        ("hidden_states = hidden_states.view(1, 3 * width)", False),
        ("hidden_states = (hidden_states * 3).view(1, width)", True),
        ("hidden_states = torch.reshape(hidden_states * 3, (1, width))", True),
        ("hidden_states, _ = torch.split(hidden_states * 3, width)", True),
    ],
)
def test_products_of_sizes_are_not_of_tensors(body: str, is_question: bool, tmp_path: Path) -> None:
    assert unexplained(tmp_path, body=body) == ([body] if is_question else [])
