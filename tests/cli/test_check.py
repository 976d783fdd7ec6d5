"""`bringup check`: formats, exit codes, and what it costs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import SMALL, Bringup
from tests.cli.headers import gpt2_config, gpt2_shapes, write_checkpoint

HEAVY = ("torch", "numpy", "rich", "transformers", "ml_dtypes", "safetensors", "iree", "huggingface_hub")


def test_a_clean_checkpoint_fits(bringup: Bringup, small: Path) -> None:
    result = bringup("check", "--checkpoint", small)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == "gpt2: 41 parameters, 43 tensors, 40 read, 3 dropped — fits\n"


def test_a_clean_check_imports_nothing_heavy(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "gpt2", gpt2_shapes(), gpt2_config())
    script = (
        "import sys\nfrom bringup.cli.main import main\n"
        f"try: main()\nfinally: print([name for name in {HEAVY} if name in sys.modules])"
    )
    command = [sys.executable, "-c", script, "check", "gpt2", "--checkpoint", str(folder)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.stdout == "gpt2: 149 parameters, 160 tensors, 148 read, 12 dropped — fits\n[]\n"
    assert result.returncode == 0


def test_every_mistake_is_reported_once(bringup: Bringup, broken: Path) -> None:
    result = bringup("check", "--checkpoint", broken)
    assert result.exit_code == 1
    heads = [line for line in result.stdout.splitlines() if line.startswith("error")]
    assert heads == [
        "error[BU101]: the checkpoint has no tensor `h.1.mlp.c_proj.weight`",
        "error[BU105]: no rule reads the tensor `extra` [3, 4]",
        "error[BU102]: `h.{0..2}.attn.c_attn.weight` is [384, 128], the rule expects [128, 384], axes `in out`",
    ]
    assert "adapters/gpt2.py:" in result.stdout
    assert "graphs/gpt2.py:" in result.stdout
    assert result.stdout.endswith("gpt2: 3 errors; `bringup explain BU101` has more\n")


def test_concise_and_json_say_the_same(bringup: Bringup, broken: Path) -> None:
    concise = bringup("check", "--checkpoint", broken, "--format", "concise")
    found = json.loads(bringup("check", "--checkpoint", broken, "--format", "json").stdout)
    assert concise.exit_code == 1
    assert [finding["code"] for finding in found["findings"]] == ["BU101", "BU105", "BU102"]
    assert all(finding["message"] in concise.stdout for finding in found["findings"])
    assert list(found) == ["ok", "model", "findings", "counts", "seconds"]
    assert found["counts"] == {"parameters": 41, "tensors": 44, "consumed": 39, "dropped": 3}


def test_what_stops_a_check_is_json_too(bringup: Bringup, tmp_path: Path) -> None:
    result = bringup("check", "--checkpoint", tmp_path / "none", "--format", "json")
    found = json.loads(result.stdout)
    assert (result.exit_code, found["ok"], found["counts"]) == (2, False, {})
    assert [finding["code"] for finding in found["findings"]] == ["BU034"]


def test_ranks(bringup: Bringup, small: Path) -> None:
    result = bringup("check", "--checkpoint", small, "--tp", "2")
    assert result.exit_code == 0
    assert "2 ranks: " in result.stdout
    found = json.loads(bringup("check", "--checkpoint", small, "--tp", "2", "--format", "json").stdout)
    first, second = found["bytes_per_rank"]
    whole = sum(4 * _count(shape) for name, shape in gpt2_shapes(**SMALL).items() if "attn.bias" not in name)
    assert first == second
    assert whole / 2 < first < whole


def test_ranks_that_do_not_divide(bringup: Bringup, small: Path) -> None:
    result = bringup("check", "--checkpoint", small, "--tp", "5", "--format", "concise")
    assert result.exit_code == 1
    assert result.stdout.count("error[BU130]") == 2  # heads, feed-forward; the vocabulary is padded


def _count(shape: tuple[int, ...]) -> int:
    return 1 if not shape else shape[0] * _count(shape[1:])


def test_a_config_key_needs_a_reason(bringup: Bringup, tmp_path: Path) -> None:
    config = gpt2_config(**SMALL) | {"logit_scale": 0.5}
    folder = write_checkpoint(tmp_path / "scaled", gpt2_shapes(**SMALL), config)
    assert bringup("check", "--checkpoint", folder).exit_code == 1
    assert bringup("check", "--checkpoint", folder, "--allow-config", "logit_scale").exit_code == 2
    allowed = bringup("check", "--checkpoint", folder, "--allow-config", "logit_scale=only in training")
    assert allowed.exit_code == 0, allowed.output


def test_another_config_and_another_adapter(bringup: Bringup, small: Path, tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(gpt2_config(**SMALL | {"layers": 2})))
    fewer = bringup("check", "--checkpoint", small, "--config", config, "--format", "concise")
    assert fewer.exit_code == 1
    assert "error[BU105] no rule reads the tensor `h.2`" in fewer.stdout
    adapter = tmp_path / "mine.py"
    adapter.write_text(
        "from bringup.adapters.gpt2 import adapter as published\n"
        "def adapter(config):\n    made = published(config)\n    made.drops.clear()\n    return made\n"
    )
    strict = bringup("check", "--checkpoint", small, "--adapter", adapter, "--format", "concise")
    assert "error[BU105] no rule reads the tensor `h.{0..2}.attn.bias`" in strict.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["check"], "neither a model nor a checkpoint is named"),
        (["check", "gtp2"], "did you mean `gpt2`?"),
        (["chek"], "did you mean `check`?"),
        (["check", "gpt2", "--chekpoint", "x"], "--checkpoint"),
        (["check", "gpt2", "--format", "yaml"], "valid values: full, concise, json"),
        (["check", "hf://openai-community/gpt2"], "write --checkpoint hf://openai-community/gpt2"),
        (["check", "gpt2", "--checkpoint", "./x", "--revision", "main"], "--revision applies to"),
    ],
)
def test_a_wrong_command_is_exit_2(bringup: Bringup, words: list[str], said: str) -> None:
    result = bringup(*words)
    assert result.exit_code == 2
    assert said in result.output


@pytest.mark.parametrize("command", ["check", "verify"])
def test_dummy_weights_of_no_model(bringup: Bringup, command: str) -> None:
    result = bringup(command, "--checkpoint", "dummy")
    assert result.exit_code == 2
    assert "error[BU035]: `dummy` weights need a model" in result.output
    assert "= help: name a model, or give a config.json with --config FILE" in result.output


def test_dummy_weights_are_announced(bringup: Bringup) -> None:
    result = bringup("check", "gpt2", "--checkpoint", "dummy")
    assert (result.exit_code, result.stderr) == (0, "note: random dummy weights, as requested\n")


@pytest.mark.parametrize("kind", ["text", "folder"])
def test_another_config_takes_the_place_of_one_that_is_not_readable(
    bringup: Bringup, small: Path, tmp_path: Path, kind: str
) -> None:
    """As the help of the error says; `inspect` shows the tensors and the error."""
    config = small / "config.json"
    given = config.rename(tmp_path / "given.json")
    if kind == "text":
        config.write_text("{", "utf-8")
    else:
        config.mkdir()
    code = "BU202" if kind == "text" else "BU233"
    for words in (["check"], ["check", "gpt2"], ["init"]):
        result = bringup(*words, "--checkpoint", small)
        assert result.exit_code == 1
        assert f"error[{code}]" in result.output
        assert "BU127" not in result.output
    assert bringup("check", "--checkpoint", small, "--config", given).exit_code == 0
    shown = bringup("inspect", small)
    assert shown.exit_code == 1
    assert f"error[{code}]" in shown.output
    assert "wte.weight" in shown.output
