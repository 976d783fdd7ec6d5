"""`--target-option NAME=VALUE`, and `target_options` in Python."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from bringup.cli.main import cli
from bringup.compile.targets.selection import select
from bringup.diagnostics import BringupError


def test_every_option_has_a_value():
    assert select("iree-cpu").options == {"cpu": "host", "pack-weights": "yes"}
    assert select("iree-cpu", {"pack-weights": False}).options == {"cpu": "host", "pack-weights": "no"}
    assert select("torch").options == {}


@pytest.mark.parametrize(
    ("target", "options", "message", "help"),
    [
        ("iree-cpu", {"pack-wieghts": "no"}, "`iree-cpu` has no option `pack-wieghts`", "did you mean `pack-weights`?"),
        ("iree-cpu", {"pack-weights": "on"}, "invalid value `on`", "valid values: yes, no"),
        ("iree-cpu", {"pack-weights": 2}, "invalid value 2", "valid values: yes, no"),
        ("iree-cpu", {"pack-weights": None}, "invalid value None", "a string or an integer"),
        ("iree-cpu", {"cpu": "hsot"}, "invalid value `hsot` for", "did you mean `host`?"),
        ("iree-cpu", {"cpu": "a\nb"}, "for the target option `cpu`", "a string"),
        ("iree-cpu", {"cpu": 10**5000}, "`cpu` has too many digits", "a string"),
        ("torch", {"cpu": "host"}, "`torch` has no option `cpu`", "target `torch` has no options"),
        ("cpu", {"pack-weights": "no"}, "`llvm` has no option `pack-weights`", "`--target iree-cpu` supports it"),
        ("cpu", {"cpu": "znver4"}, "invalid value `znver4`", "host, generic; `--target iree-cpu` supports it"),
        ("cpu", ["cpu"], "for `target_options`", "pass a dict"),
    ],
)
def test_what_is_wrong_is_one_error(target, options, message, help):
    with pytest.raises(BringupError) as caught:
        select(target, options)
    (finding,) = caught.value.findings
    assert finding.code == "BU024"
    assert message in finding.message
    assert help in finding.help


def test_an_option_changes_flags_and_keys():
    host, generic = select("iree-cpu"), select("iree-cpu", {"cpu": "generic"})
    assert host.settings() != generic.settings()
    assert "--iree-llvmcpu-target-cpu=generic" in generic.settings()["target key flags"]
    assert "target key processor" in host.settings()
    assert "target key processor" not in generic.settings()
    assert select("iree-cpu", {"pack-weights": "no"}).inputs() != host.inputs()


def test_packed_copies_are_estimated_where_they_are_packed():
    from bringup.spec import TensorInfo

    weights = [TensorInfo("a", "float32", (4, 8)), TensorInfo("b", "float32", (8,))]
    assert select("iree-cpu").estimate(weights).packed == 128
    assert select("iree-cpu", {"pack-weights": "no"}).estimate(weights).packed == 0
    assert select("torch").estimate(weights).packed == 0


@pytest.mark.parametrize("word", ["cpu", "=host", "cpu="])
def test_a_malformed_word(word):
    result = CliRunner().invoke(cli, ["compile", "gpt2", "--checkpoint", "dummy", "--target-option", word])
    assert result.exit_code == 2
    assert f"error[BU024]: `--target-option`: `{word}` is not NAME=VALUE" in result.stderr
