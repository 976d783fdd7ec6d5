"""`bringup lock` and `bringup diff`: what they find is what was changed by hand."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from bringup.compile.convert.compare import _unequal
from tests.cli.conftest import Bringup
from tests.convert import models
from tests.convert.test_convert import save


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save(tmp_path / "a", *models.llama())


def test_a_lock_that_holds(bringup: Bringup, folder: Path, tmp_path: Path) -> None:
    lock = tmp_path / "plan.lock"
    assert bringup("lock", "--checkpoint", folder, "-o", lock).exit_code == 0
    result = bringup("lock", "--check", lock)  # model and checkpoint are in the lock
    assert (result.exit_code, "unchanged, 35 parameters" in result.stderr) == (0, True), result.output
    rows = [line for line in lock.read_text("utf-8").splitlines() if '"model.layers.0.self_attn.q_proj.weight"' in line]
    assert len(rows) == 1  # a line each, for reviews
    assert json.loads(lock.read_text("utf-8"))["request"] == {"checkpoint": str(folder), "dtype": "auto"}


def test_several_locks(bringup: Bringup, folder: Path, tmp_path: Path) -> None:
    """As pre-commit gives them, with a model among them or without; the changes of all are reported."""
    first, second = tmp_path / "a.plan.lock", tmp_path / "plan.lock"
    for lock in (first, second):
        assert bringup("lock", "--checkpoint", folder, "-o", lock).exit_code == 0
    result = bringup("lock", "--check", first, second)
    assert (result.exit_code, result.stderr.count("unchanged")) == (0, 2), result.output
    named = bringup("lock", "--check", first, "llama", second, "--checkpoint", folder)
    assert (named.exit_code, named.stderr.count("unchanged")) == (0, 2), named.output
    second.write_text(second.read_text("utf-8").replace("input_layernorm", "input_norm"), "utf-8")
    changed = bringup("lock", "--check", first, second)
    assert (changed.exit_code, changed.stderr.count("unchanged"), "error[BU141]" in changed.stderr) == (1, 1, True)
    words = bringup("lock", "--check", first, "llama", "gpt2", "--checkpoint", folder)
    assert "error[BU023]: `gpt2` is neither a lock file nor the model" in words.stderr
    assert "error[BU023]: `plan` is one word too many" in bringup("lock", "llama", "plan", "-o", second).stderr


def test_drift_of_a_checkpoint(bringup: Bringup, folder: Path, tmp_path: Path) -> None:
    """Tensors of another size, a dropped buffer more."""
    lock = tmp_path / "plan.lock"
    assert bringup("lock", "--checkpoint", folder, "-o", lock).exit_code == 0
    other = save(tmp_path / "b", *models.llama(ffn=28))
    result = bringup("lock", "--check", lock, "--checkpoint", other)
    assert result.exit_code == 1
    names = "model.layers.{0..1}.mlp.gate_proj.bias, model.layers.{0..1}.mlp.up_proj.bias"
    assert f"error[BU141]: `{names}`: shape [24] → [28]" in result.stderr
    assert "bringup lock … -o" in result.stderr
    diffed = bringup("diff", lock, lock)
    assert (diffed.exit_code, diffed.stdout) == (0, "no differences\n")


def test_drift_of_a_rule(bringup: Bringup, folder: Path, tmp_path: Path) -> None:
    """gate and up exchanged: no shape shows it, the lock does."""
    lock, table = tmp_path / "plan.lock", tmp_path / "table.py"
    assert bringup("lock", "--checkpoint", folder, "-o", lock).exit_code == 0
    text = (Path(__file__).parents[2] / "adapters" / "llama.py").read_text("utf-8")
    table.write_text(text, "utf-8")
    assert bringup("lock", "--check", lock, "--checkpoint", folder, "--adapter", table).exit_code == 0
    target, source = 'llama["model.layers.{L}.mlp.%s_proj.{p:weight|bias}"]', 'S("layers.{L}.mlp.%s_proj.{p}")'
    swapped = [f"{target % x} = {source % y}" for x, y in (("gate", "up"), ("up", "gate"), ("down", "down"))]
    other = text.replace(f"{target % '{x:gate|up|down}'} = {source % '{x}'}", "\n    ".join(swapped))
    table.write_text(other, "utf-8")
    result = bringup("lock", "--check", lock, "--checkpoint", folder, "--adapter", table)
    assert result.exit_code == 1
    assert "mlp.gate_proj.weight" in result.stderr
    assert "`: reads other tensors" in result.stderr


def test_two_checkpoints(bringup: Bringup, folder: Path, tmp_path: Path) -> None:
    tensors, config = models.llama()
    same = save(tmp_path / "same", tensors, config)
    assert (bringup("diff", folder, same).exit_code, bringup("diff", folder, same).stdout) == (0, "no differences\n")
    changed = dict(tensors)
    changed["model.norm.weight"] = tensors["model.norm.weight"] + np.float32([0.5] + [0] * 15)
    changed["extra"] = changed.pop("lm_head.weight")
    for layer in range(2):
        changed[f"model.layers.{layer}.mlp.up_proj.bias"] = np.zeros(25, np.float32)
    changed["model.embed_tokens.weight"] = tensors["model.embed_tokens.weight"].astype(np.float16)
    other = save(tmp_path / "other", changed, config | {"rms_norm_eps": 1e-3})
    result = bringup("diff", folder, other, "--format", "json")
    assert result.exit_code == 1
    found = {(each["what"], each["names"]): each["text"] for each in json.loads(result.stdout)["differences"]}
    assert found == {
        ("config", "rms_norm_eps"): "absent in the first, 0.001 in the second",
        ("tensor", "lm_head.weight"): "only in the first",
        ("tensor", "extra"): "only in the second",
        ("shape", "model.layers.{0..1}.mlp.up_proj.bias"): "[24] → [25]",
        ("dtype", "model.embed_tokens.weight"): "float32 → float16",
        ("values", "model.norm.weight"): "1 of 16 differ, by 0.5 at most",
    }
    assert "values" not in bringup("diff", folder, other, "--headers").stdout


def test_each_name_is_a_line(bringup: Bringup, folder: Path, tmp_path: Path) -> None:
    """Not a table as wide as all names together."""
    tensors, config = models.llama()
    other = save(
        tmp_path / "other",
        {name: array for name, array in tensors.items() if "proj.weight" not in name or "mlp" not in name},
        config,
    )
    assert bringup("diff", folder, other).stdout.splitlines() == [
        "tensor  model.layers.{0..1}.mlp.down_proj.weight  only in the first",
        "        model.layers.{0..1}.mlp.gate_proj.weight",
        "        model.layers.{0..1}.mlp.up_proj.weight",
        "1 difference",
    ]


def test_nan_equals_its_own_bits(bringup: Bringup, tmp_path: Path) -> None:
    tensors, config = models.llama()
    tensors["model.norm.weight"][0] = np.nan
    assert bringup("diff", save(tmp_path / "x", tensors, config), save(tmp_path / "y", tensors, config)).exit_code == 0


def test_converted_weights(bringup: Bringup, folder: Path, tmp_path: Path) -> None:
    for name, words in (("one", ["--tp", 2]), ("two", ["--tp", 2, "--vocab-multiple", 64])):
        assert bringup("convert", "--checkpoint", folder, *words, "-o", tmp_path / name).exit_code == 0
    result = bringup("diff", tmp_path / "one", tmp_path / "two")
    assert result.exit_code == 1
    assert "[16, 16] → [32, 16]" in result.stdout
    assert "vocab_multiple" in result.stdout
    assert bringup("diff", tmp_path / "one", tmp_path / "one").exit_code == 0


def test_what_cannot_be_compared(bringup: Bringup, folder: Path, tmp_path: Path) -> None:
    lock = tmp_path / "plan.lock"
    assert bringup("lock", "--checkpoint", folder, "-o", lock).exit_code == 0
    assert "error[BU044]" in bringup("diff", lock, folder).stderr
    (tmp_path / "x.json").write_text("{}", "utf-8")
    assert "error[BU044]" in bringup("lock", "--check", tmp_path / "x.json").stderr
    assert "error[BU023]" in bringup("lock", "--checkpoint", folder).stderr
    assert "help: bringup lock --check a.lock" in bringup("lock", "a.lock").stderr


def test_converted_npz_files_are_compared(bringup: Bringup, tmp_path: Path) -> None:
    """Each file is opened by the reader of its format."""
    tensors, config = models.llama()
    one = save(tmp_path / "one", tensors, config)
    name = next(iter(tensors))
    other = save(tmp_path / "other", tensors | {name: tensors[name] + np.ones_like(tensors[name])}, config)
    for folder in (one, other):
        words = ("--format", "npz", "-o", folder / "out")
        assert bringup("convert", "--checkpoint", folder, *words).exit_code == 0
    assert bringup("diff", one / "out", one / "out").stdout == "no differences\n"
    result = bringup("diff", one / "out", other / "out")
    assert result.exit_code == 1
    assert "model.npz/" in result.stdout
    assert "differ, by 1 at most" in result.stdout


def test_differences_of_what_is_not_finite() -> None:
    left, right = np.float32([1, np.nan, np.inf, 2]), np.float32([1, 0, 0, 2])
    assert _unequal(left, right, "float32") == (2, None, 2)
    assert _unequal(left, np.float32([2, 0, 0, 2]), "float32") == (3, 1.0, 2)
