"""What is misspelt on the command line, in a config or in an adapter is answered with what was meant."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest

from bringup.cli.main import COMMANDS, cli
from bringup.diagnostics import BringupError
from bringup.graphs.registry import by_architecture
from tests.cli.conftest import SMALL, Bringup
from tests.cli.headers import gpt2_config, gpt2_shapes, write_checkpoint

PUBLISHED = Path(__file__).parents[2] / "adapters/gpt2.py"


@pytest.mark.parametrize(
    ("line", "code", "hint"),
    [
        ("chek gpt2", "BU023", "did you mean `check`?"),
        ("comp gpt2", "BU023", "did you mean `compile` or `completion`?"),
        ("zebra", "BU023", "the commands are compile, check, inspect, init, run"),
        ("cache lss", "BU023", "did you mean `ls`?"),
        ("check --chekpoint x", "BU023", "did you mean `--checkpoint`?"),
        ("check --allow_config a=b", "BU023", "did you mean `--allow-config`?"),
        ("check --frobnicate", "BU023", "`bringup check --help` lists the options"),
        ("compile gpt2 --dyr-run", "BU023", "did you mean `--dry-run`?"),
        ("compile gpt2 --passes=-fuse-norms", "BU023", "write `--target-option passes=VALUE`"),
        ("run b --passes x", "BU023", "`bringup run --help` lists the options"),
        ("run b --max-tokens 6", "BU023", "did you mean `--max-new-tokens`?"),
        ("check gpt2 --format jsno", "BU024", "did you mean `json`?"),
        ("check gpt2 --format yaml", "BU024", "valid values: full, concise, json"),
        ("compile gpt2 --dtype flaot32", "BU024", "did you mean `float32`?"),
        ("compile gpt2 --emit vmbf", "BU024", "did you mean `vmfb`?"),
        ("run b -o x", "BU023", "`bringup run --help` lists the options"),
        ("compile gpt2 --checkpoint absent --target cpuu", "BU006", "did you mean `cpu`?"),
        ("verify gpt2 --checkpoint absent --target cpuu", "BU006", "did you mean `cpu`?"),
        ("bench gpt2 --checkpoint absent --target cpuu", "BU006", "did you mean `cpu`?"),
        ("compile gpt2 --checkpoint absent --target-option cpuu=x", "BU024", "did you mean `cpu`?"),
        ("check gtp2", "BU002", "did you mean `gpt2`?"),
        ("check gpt2-meduim", "BU002", "did you mean `gpt2-medium`?"),
        ("check llma --checkpoint x", "BU002", "did you mean `llama`?"),
        ("check zebra", "BU002", "`bringup models` lists the names"),
        ("check organisation/zebra", "BU002", "write --checkpoint hf://organisation/zebra"),
        ("explain BU1O2", "BU010", "did you mean `BU102`?"),
        ("explain bul02", "BU010", "did you mean `BU102`?"),
        ("explain shape-mismach", "BU010", "did you mean `shape-mismatch`?"),
        ("explain zebra", "BU010", "name the model too"),
        ("explain h.0.atn.c_attn.weight gpt2 --checkpoint dummy", "BU010", "did you mean `h.0.attn.c_attn.weight`?"),
        ("explain transformer.wte.wieght gpt2 --checkpoint dummy", "BU010", "did you mean `transformer.wte.weight`?"),
        ("completion fihs", "BU024", "did you mean `fish`?"),
    ],
)
def test_on_the_command_line(bringup: Bringup, line: str, code: str, hint: str) -> None:
    result = bringup(*line.split())
    output = result.stderr + result.stdout
    assert result.exit_code == 2
    assert f"error[{code}]: " in output
    assert hint in output.partition("= help: ")[2]
    assert "Usage:" not in output


def test_an_architecture() -> None:
    with pytest.raises(BringupError) as caught:
        by_architecture(["GPT2LMHeadModle"])
    assert caught.value.findings[0].help.startswith("did you mean `GPT2LMHeadModel`? if not, ")
    with pytest.raises(BringupError) as caught:
        by_architecture(["MixtarlForCausalLM"])
    assert caught.value.findings[0].help.startswith("did you mean `MixtralForCausalLM`? if not, ")
    for other in ("RwkvForCausalLM", "WombatForCausalLM"):  # with Bamba, it has only the suffix in common
        with pytest.raises(BringupError) as caught:
            by_architecture([other])
        assert "did you mean" not in caught.value.findings[0].help


def test_config_keys(bringup: Bringup, tmp_path: Path) -> None:
    config = gpt2_config(**SMALL) | {"n_heda": 2, "logit_scale": 0.5}
    folder = write_checkpoint(tmp_path / "x", gpt2_shapes(**SMALL), config)
    result = bringup(
        "check", "--checkpoint", folder, "--allow-config", "logit_scal=only in training", "--format", "json"
    )
    findings = {finding["parameter"]: finding for finding in json.loads(result.stdout)["findings"]}
    assert findings["n_heda"]["help"].startswith("did you mean `n_head`? ")
    advice = "read it in `from_fields`, or if it does not affect the result: --allow-config logit_scale=REASON"
    assert findings["logit_scale"]["help"] == advice
    assert (findings["logit_scal"]["code"], findings["logit_scal"]["severity"]) == ("BU025", "warning")
    assert findings["logit_scal"]["help"] == "did you mean `logit_scale`?"


def test_an_idle_allowance_alone_is_a_warning(bringup: Bringup, small: Path) -> None:
    result = bringup("check", "--checkpoint", small, "--allow-config", "zebra=of no use")
    assert result.exit_code == 0
    assert "warning[BU025]: --allow-config names `zebra`" in result.stdout
    assert "help: leave it out" in result.stdout


@pytest.mark.parametrize(
    ("right", "wrong", "code", "hint"),
    [
        ('"in out", "vocab m"', '"in ot", "vocab m"', "BU106", "no axis `ot`; did you mean `out`?"),
        ('S("wte.weight", "vocab m")', 'S("wte.weight", "vocb m")', "BU106", "no axis `vocb`; did you mean `vocab`?"),
        ('S("h.{L}.{m}.{p}")', 'S("h.{L}.{m}.{p}").split("ot", 1, 2)[0]', "BU106", "did you mean `out`?"),
        (
            '"transformer.h.{L}.{m:attn',
            '"transformer.hh.{L}.{m:attn',
            "BU103",
            "a rule computes `transformer.hh.{}.attn",
        ),
        ("{n:ln_1|ln_2}", "{n:ln_3|ln_2}", "BU103", "a rule computes `transformer.h.{}.ln_3.weight`"),
        ('S("h.{L}.{m}.{p}")', 'S("h.{N}.{m}.{p}")', "BU027", "has {L}, {m}, {p}"),
    ],
)
def test_in_an_adapter(
    bringup: Bringup, small: Path, tmp_path: Path, right: str, wrong: str, code: str, hint: str
) -> None:
    adapter, text = tmp_path / "mine.py", PUBLISHED.read_text("utf-8")
    assert text.count(right) == 1
    adapter.write_text(text.replace(right, wrong), "utf-8")
    result = bringup("check", "--checkpoint", small, "--adapter", adapter, "--format", "json")
    findings = [finding for finding in json.loads(result.stdout)["findings"] if finding["code"] == code]
    assert findings, result.stdout
    assert any(hint in finding["help"] for finding in findings), findings
    assert all(finding["rule"]["file"] == str(adapter) for finding in findings)
    assert all(right_line(adapter, wrong) == finding["rule"]["line"] for finding in findings) or '"in ot"' in wrong


def right_line(adapter: Path, text: str) -> int:
    """The line of the rule that was spoilt; a tie's is the next."""
    lines = adapter.read_text("utf-8").splitlines()
    number = next(number for number, line in enumerate(lines, 1) if text in line)
    return number + 1 if "embedding" in lines[number - 1] else number


def test_every_choice_has_a_suggestion() -> None:
    ctx = click.Context(cli)
    for name in COMMANDS:
        command = cli.get_command(ctx, name)
        assert command
        kinds = [type(parameter.type) for parameter in command.params]
        assert click.Choice not in kinds, f"bringup {name}: OneOf suggests, click.Choice does not"
