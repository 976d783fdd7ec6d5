"""`check --fix`: what is certain is put right, the rest is left alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.adapters import GPT2, LLAMA, REFUSED, REPAIRED, TURNED, Broken
from tests.cli.conftest import SMALL, Bringup
from tests.cli.headers import gpt2_config, gpt2_shapes, write_checkpoint
from tests.quantised.checkpoints import write
from tests.quantised.int4_formats import FORMATS


def run(bringup: Bringup, broken: Broken, folder: Path, *words: str):
    return bringup("check", "--checkpoint", folder / "checkpoint", "--adapter", folder / "mine.py", *words)


@pytest.fixture
def prepared(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Broken, Path, str]:
    """A broken adapter in a file, beside a checkpoint; and the text of the one in order."""
    broken: Broken = request.param
    broken.checkpoint(tmp_path / "checkpoint")
    return broken, tmp_path, broken.write(tmp_path / "mine.py")


@pytest.mark.parametrize("prepared", REPAIRED.values(), ids=REPAIRED, indirect=True)
def test_it_is_repaired(bringup: Bringup, prepared: tuple[Broken, Path, str]) -> None:
    """Marked, shown and changed in nothing by `--diff`; then changed to the very text it was made from."""
    broken, folder, right = prepared
    file = folder / "mine.py"
    wrong = file.read_bytes()
    output = run(bringup, broken, folder, "--format", "concise")
    errors = output.stdout.count(": error[")
    assert (output.exit_code, errors) == (1, output.stdout.count("] [*] "))
    assert f"[*] {errors} fixable with --fix\n" in output.stdout
    shown = run(bringup, broken, folder, "--diff")
    assert shown.exit_code == 1
    assert shown.stdout.startswith(f"--- {file}\n+++ {file}\n@@ ")
    assert file.read_bytes() == wrong
    fixed = run(bringup, broken, folder, "--fix")
    assert fixed.exit_code == 0, fixed.output
    assert fixed.stdout.endswith("fits\n")
    assert fixed.stderr == f"fixed {errors} error{'s' if errors > 1 else ''}\n"
    assert file.read_bytes().decode() == right
    assert [entry.name for entry in folder.iterdir() if entry.name.startswith(".")] == []
    again = run(bringup, broken, folder, "--fix")
    assert (again.exit_code, again.stderr) == (0, "nothing to fix for certain\n")
    assert file.read_bytes().decode() == right


@pytest.mark.parametrize("prepared", REFUSED.values(), ids=REFUSED, indirect=True)
def test_it_is_left_alone(bringup: Bringup, prepared: tuple[Broken, Path, str]) -> None:
    broken, folder, _ = prepared
    file = folder / "mine.py"
    wrong = file.read_bytes()
    output = run(bringup, broken, folder, "--fix")
    assert output.exit_code == 1, output.output
    assert output.stderr == "nothing to fix for certain\n"
    assert "[*]" not in output.stdout
    assert file.read_bytes() == wrong


def test_nothing_is_put_right_by_putting_something_else_wrong(bringup: Bringup, tmp_path: Path) -> None:
    """A tensor that lies the other way round in one layer only: turning the rule would break the other layers."""
    shapes = gpt2_shapes(**SMALL)
    shapes["h.1.attn.c_attn.weight"] = shapes["h.1.attn.c_attn.weight"][::-1]
    write_checkpoint(tmp_path / "checkpoint", shapes, gpt2_config(**SMALL))
    (tmp_path / "mine.py").write_text(TURNED)
    result = run(bringup, REPAIRED["stated axes of Conv1D"], tmp_path, "--fix")
    assert (result.exit_code, result.stderr) == (1, "nothing to fix for certain\n")
    assert (tmp_path / "mine.py").read_text() == TURNED


def test_what_is_certain_is_repaired_and_the_rest_reported(bringup: Bringup, small: Path, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    text = GPT2.replace('S("h.{L}.{n}.{p}")', 'S("h.{L}.x{n}.{p}")').replace('S("wte.weight"', 'S("nothing.like.it"')
    file.write_text(text)
    result = bringup("check", "--checkpoint", small, "--adapter", file, "--fix", "--format", "concise")
    assert result.exit_code == 1
    assert result.stderr == "fixed 2 errors\n"
    assert result.stdout.count("error[") == 1
    assert "nothing.like.it" in file.read_text()
    assert 'S("h.{L}.{n}.{p}")' in file.read_text()


def test_a_slip_wins_over_what_is_merely_possible(bringup: Bringup, tmp_path: Path) -> None:
    """`k_prj` is k_proj, though v_proj has the same shape and no rule reads it either."""
    broken = REPAIRED["llama: an f-string in a loop"]
    broken.checkpoint(tmp_path / "checkpoint")
    text = broken.text.replace(
        'for x in "qkvo":\n', 'for x, y in (("q", "q"), ("k", "kk"), ("v", "vv"), ("o", "o")):\n'
    ).replace('S(f"layers.{{L}}.self_attn.{x}_proj', 'S(f"layers.{{L}}.self_attn.{y}_proj')
    (tmp_path / "mine.py").write_text(text)
    loops = run(bringup, broken, tmp_path, "--fix")  # the slip lies in what the loop puts in
    assert loops.stderr == "nothing to fix for certain\n"
    rules = "".join(
        f'    llama["model.layers.{{L}}.self_attn.{x}_proj.weight"] = '
        f'S("layers.{{L}}.self_attn.{y}_proj.weight", "out in")\n'
        for x, y in (("q", "q"), ("k", "kk"), ("v", "vv"), ("o", "o"))
    )
    head, _, rest = broken.text.partition('    for x in "qkvo":\n')
    (tmp_path / "mine.py").write_text(head + rules + rest.partition("\n")[2])
    fixed = run(bringup, broken, tmp_path, "--fix")
    assert (fixed.exit_code, fixed.stderr) == (0, "fixed 2 errors\n"), fixed.output
    assert "self_attn.k_proj.weight" in fixed.stdout
    assert "kk" not in (tmp_path / "mine.py").read_text()


@pytest.mark.parametrize(
    ("right", "wrong"), [("layers.{L}.{n}.weight", "layers.{L}.{n}.wieght"), ("lm_head.weight", "lmhead.weight")]
)
def test_a_name_next_to_quantised_matrices(bringup: Bringup, tmp_path: Path, right: str, wrong: str) -> None:
    """The proof reads the matrices as their config states."""
    checkpoint, _ = write("llama", FORMATS["awq"], tmp_path)
    file = tmp_path / "mine.py"
    file.write_text(LLAMA.replace(f'S("{right}")', f'S("{wrong}")'))
    words = ("check", "llama", "--checkpoint", checkpoint, "--adapter", file)
    assert bringup(*words).exit_code == 1
    result = bringup(*words, "--fix")
    assert result.exit_code == 0, result.output
    assert file.read_text() == LLAMA
