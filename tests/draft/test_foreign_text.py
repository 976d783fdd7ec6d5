"""Any text of a checkpoint is a literal or a comment in the drafted files: it adds no statement, and never runs."""

from __future__ import annotations

import ast
import builtins
import keyword
from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bringup.adapters.checkpoints.checkpoint import Checkpoint
from bringup.compile.draft.draft import Draft, draft
from bringup.compile.draft.facts.hints import Hints
from bringup.compile.draft.facts.quoted import one_line, quoted
from bringup.diagnostics import BringupError
from tests.draft.headers import LAYER, checkpoint, shapes

PIECES = (
    '"', "'", '"""', "\\", "\n", "\r", "\x0c", "\x85", "\u2028", "{", "}", "{L}", "#", ")", "]", ", ", "; ",
    "planted()", "    ", "x", "[planted() for _ in '1']", ".weight", "é", "\u202e", "\ud800",
)  # fmt: skip
PAYLOADS = (
    'x", *[planted()], "',
    "x'+planted()+'",
    "x\nplanted()\n",
    'x")*[planted()][0]*S("',
    "x\\",
    '"""\nplanted()',
)
TEXTS = st.sampled_from(PAYLOADS) | st.lists(st.sampled_from(PIECES), max_size=8).map("".join) | st.text(max_size=20)
FEW = settings(
    max_examples=25, deadline=None, database=None, derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip


@pytest.fixture(autouse=True)
def planted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What ran: texts call `planted`. Hints are left out, since no library knows the model."""
    ran: list[str] = []
    monkeypatch.setattr(builtins, "planted", lambda: ran.append("planted"), raising=False)
    monkeypatch.setattr("bringup.compile.draft.draft.hints_of", lambda *_: Hints())
    return ran


def contents(found: Draft) -> dict[str, Counter[str]]:
    """How many nodes of each kind a file has that could run something."""
    counted = (ast.stmt, ast.Call, ast.Subscript, ast.BinOp, ast.Starred, ast.Name, ast.comprehension)
    kinds = {name: ast.walk(ast.parse(text.encode())) for name, text in found.files.items()}
    return {
        name.replace(found.name, "NAME"): Counter(type(node).__name__ for node in nodes if isinstance(node, counted))
        for name, nodes in kinds.items()
    }


def refused_or_drafted(source: Checkpoint, name: str | None) -> Draft | None:
    """None after BU046."""
    try:
        return draft(source, name)
    except BringupError as error:
        if [finding.code for finding in error.findings] != ["BU046"]:
            raise
        return None


def drafted(text: str) -> Draft:
    words = {f"x{text}": 5, f"y{text}": None, f"z{text}": text}
    config: dict[str, Any] = {"model_type": text, "architectures": [f"A{text}"], "hidden_act": text}
    return draft(checkpoint(shapes(), f"/{text}", **config | words), "newmodel")


@FEW
@given(TEXTS)
def test_a_text_is_a_literal(planted: list[str], text: str) -> None:
    """As model_type, architecture, activation, key, value and path."""
    found, plain = drafted(text), drafted("plain")
    assert contents(found) == contents(plain)
    assert planted == []


@FEW
@given(TEXTS)
def test_a_tensor_s_name(planted: list[str], text: str) -> None:
    """A name that a pattern cannot be is refused."""
    found = {name.replace("input_layernorm", text): shape for name, shape in shapes().items()}
    found |= {f"{LAYER}{text}.inv_freq": (7,), f"{text}": (3,)}
    known = refused_or_drafted(checkpoint(found), None)
    assert known is None or all(contents(known).values())
    assert planted == []


@FEW
@given(TEXTS | st.sampled_from([*keyword.kwlist, *map(str.lower, keyword.kwlist), *keyword.softkwlist]))
def test_a_family_s_name(planted: list[str], text: str) -> None:
    found = refused_or_drafted(checkpoint(shapes()), text)
    assert found is None or ((text == "" or found.name == text) and contents(found))
    assert planted == []


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
)


@given(JSON)
def test_quoted_is_the_value(value: Any) -> None:
    assert ast.literal_eval(quoted(value)) == value
    assert quoted(value).isprintable()


@given(TEXTS)
def test_one_line_is_one(text: str) -> None:
    assert one_line(text).isprintable()
    assert ast.parse(f"1  # {one_line(text)}".encode()).body
