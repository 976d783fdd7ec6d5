"""`bringup init` on checkpoints that are wrong, or odd: a question or a code, and no file left half-way."""

from __future__ import annotations

import ast
import shlex
from pathlib import Path

import pytest

from bringup.compile.draft.draft import draft, write_draft
from bringup.compile.draft.facts.hints import Hints
from bringup.diagnostics import BringupError, fail
from bringup.render.draft import draft_text
from tests.draft.headers import LAYER, checkpoint, shapes


@pytest.fixture(autouse=True)
def no_hints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bringup.compile.draft.draft.hints_of", lambda *_: Hints())


def test_no_embedding_is_a_question() -> None:
    found = shapes()
    del found["model.embed_tokens.weight"]
    drafted = draft(checkpoint(found))
    assert any("`model.embed_tokens.weight` [32, 16]: no tensor" in question.text for question in drafted.questions)
    assert '["lm_head.weight"] = S("lm_head.weight")' in drafted.files["newmodel_adapter.py"]


@pytest.mark.parametrize("value", [5, [1], "x"])
def test_rope_parameters_that_are_no_table(value: object) -> None:
    with pytest.raises(BringupError, match="BU121") as error:
        draft(checkpoint(shapes(), rope_parameters=value))
    assert "rope_parameters" in str(error.value)


@pytest.mark.parametrize(
    ("name", "title"),
    [("none", "NoneModel"), ("true", "TrueModel"), ("decoder", "DecoderModel"), ("s", "SModel"), ("my_2b", "My2b")],
)
def test_the_class_of_a_name(name: str, title: str) -> None:
    files = draft(checkpoint(shapes()), name).files
    assert f"class {title}(CausalLM)" in files[f"{name}_graph.py"]


@pytest.mark.parametrize("name", ["config", "cat", "S", "Adapter"])
def test_a_table_with_a_rule_s_word_for_a_name(name: str) -> None:
    text = draft(checkpoint(shapes()), name).files[f"{name}_adapter.py"]
    targets = {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name) and node.col_offset == 4}
    assert targets == {"adapter"}


@pytest.mark.parametrize("name", ["_1", "__2", "1a", "class", "None", 'a"""b', "a b", "é", "a" * 300, "../up"])
def test_a_name_that_no_module_has(name: str) -> None:
    with pytest.raises(BringupError, match="BU046") as error:
        draft(checkpoint(shapes()), name)
    assert "--name" in error.value.findings[0].help


def test_a_model_type_that_is_a_keyword() -> None:
    found = draft(checkpoint(shapes(), model_type="None"))
    assert "class NoneModel(CausalLM)" in found.files["none_graph.py"]


@pytest.mark.parametrize("word", ["in{put", '"""', "a b", "a\nb", "é", "{x:**}"])
def test_a_tensor_s_name_that_no_rule_has(word: str) -> None:
    found = {name.replace("input_layernorm", word): shape for name, shape in shapes().items()}
    with pytest.raises(BringupError, match="BU046"):
        draft(checkpoint(found))


def test_an_error_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the next draft is written as if there had been none."""
    from bringup.compile.draft import draft as module

    whole = module.write_file
    found, out = draft(checkpoint(shapes())), tmp_path / "a" / "b"

    def full(path: Path, data: bytes) -> None:
        if path.name.endswith("_dialect.py"):
            raise fail("BU902", "no space is left", help="free some")
        whole(path, data)

    monkeypatch.setattr(module, "write_file", full)
    with pytest.raises(BringupError, match="BU902"):
        write_draft(found, out)
    assert list(tmp_path.iterdir()) == []
    out.mkdir(parents=True)
    (out / "notes").write_text("of the user")
    with pytest.raises(BringupError, match="BU902"):
        write_draft(found, out)
    assert [path.name for path in out.iterdir()] == ["notes"]
    monkeypatch.setattr(module, "write_file", whole)
    write_draft(found, out)
    assert {path.name for path in out.iterdir()} == {*found.files, "notes"}


def test_a_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    with pytest.raises(BringupError, match="BU901"):
        write_draft(draft(checkpoint(shapes())), tmp_path / "out")


def test_how_rope_rotates_is_in_each_tensor_s_words() -> None:
    """One question, with the rules of q next to q and of k next to k, once for weight and bias."""
    found = shapes()
    found |= {f"{LAYER}self_attn.{x}_proj.bias": (16,) for x in "qkv"}
    drafted = draft(checkpoint(found))
    lines = drafted.files["newmodel_adapter.py"].splitlines()
    pairs = [line for line in lines if "or: rope rotates pairs" in line]
    assert len(pairs) == 2
    for x, line in zip("qk", pairs, strict=True):
        assert f"self_attn.{x}_proj.weight" in line
        assert f"self_attn.{x}_proj.bias" in line
        assert f"self_attn.{'kq'['qk'.index(x)]}_proj" not in line
        rule = lines[lines.index(line) + 1]
        assert f'self_attn.{x}_proj.{{p:weight|bias}}"]' in rule
    assert sum("how rope rotates" in question.text for question in drafted.questions) == 1


def test_commands_are_quoted() -> None:
    found = draft(checkpoint(shapes()))
    text = draft_text(found, Path("a b;c"), 'x y$(touch z)"\x1b')
    commands = [line for line in text.splitlines() if line.startswith("  bringup")]
    assert len(commands) == 2
    for command in commands:
        assert "\x1b" not in command
        assert shlex.split(command)[2:4] == ["a b;c/newmodel.py", "--checkpoint"]
        assert len(shlex.split(command)) == 5
