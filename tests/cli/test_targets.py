"""`bringup targets`: what there is to compile for, and the plugins that cannot be loaded."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from bringup.cli.main import cli
from tests.cli.test_plugins import package, run
from tests.targets.third_party import SOURCE, install

BROKEN = {
    "raises": ("raise ValueError('not today')\n", "ValueError: not today"),
    "another type": ("target = 7\n", "is a int, not a Target"),
    "abstract": (
        "from bringup.compile import Target\nclass T(Target):\n    name, summary = 't', 's'\ntarget = T()\n",
        "TypeError: Can't instantiate abstract class T ",
    ),
    "our name": (
        SOURCE.replace('name = "scale"', 'name = "torch"') + "target = scale\n",
        "bringup's own targets: `torch`",
    ),
    "no name": (SOURCE.replace('name = "scale"', "") + "target = scale\n", "lower case letters"),
    "a class": (SOURCE + "target = Scale\n", "is a class; name an object of it"),
    "requires": (SOURCE.replace('("torch",)', '("",)') + "target = scale\n", "has `requires` that is not a tuple"),
    "implementations": (
        SOURCE.replace("options = {", "implementations = None\n    options = {") + "target = scale\n",
        "has `implementations` that are not",
    ),
    "options": (
        SOURCE.replace("options = {", "options = {'x': 1, ") + "target = scale\n",
        "has `options` that are not",
    ),
}


def test_text(bringup) -> None:
    result = bringup("targets")
    assert result.exit_code == 0
    assert "torch: " in result.stdout
    assert "llvm, cpu: " in result.stdout
    assert f"iree-base-compiler {version('iree-base-compiler')}" in result.stdout
    assert "pack-weights=yes|no (default: yes): " in result.stdout
    assert "local-task" in result.stdout
    assert "passes=TEXT: passes to leave out" in result.stdout  # no empty default


def test_json(bringup) -> None:
    output = json.loads(bringup("targets", "--format", "json").stdout)
    assert output["broken"] == []
    torch, iree, cpu, schedule, *gpu = output["targets"]
    assert {each["family"] for each in gpu} == {"cuda", "rocm", "iree-cuda", "iree-rocm"}
    assert gpu[3]["name"] == "cuda:sm_90"
    assert gpu[3]["devices"] == ["gpu", "emulate", "reference"]
    assert (torch["name"], torch["options"], torch["installed"]) == ("torch", {}, True)
    assert (iree["name"], iree["aliases"], iree["phases"]) == ("iree-cpu", [], ["mlir", "vmfb"])
    assert iree["options"]["cpu"]["default"] == "host"
    assert iree["options"]["pack-weights"]["choices"] == ["yes", "no"]
    assert (cpu["name"], cpu["aliases"], cpu["phases"]) == ("llvm", ["cpu"], ["schedule", "llvm"])
    assert cpu["devices"] == ["threads", "mapped", "reference"]
    assert cpu["options"]["cpu"]["choices"] == ["host", "generic"]
    assert (schedule["name"], schedule["phases"], schedule["devices"]) == ("schedule", ["schedule"], ["reference"])


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_plugin_hides_no_other(tmp_path: Path, name: str) -> None:
    source, said = BROKEN[name]
    site = install(tmp_path / "site")
    package(site, "bad", "[bringup.targets]\nbad = bad:target\n", source)
    done = run(site, "targets")
    assert done.exit_code == 0, done.stderr
    assert "scale: torch with a factor" in done.stdout
    assert "warning[BU026]: plugin `bad` (`bad:target`)" in done.stderr
    assert said in done.stderr
    (broken,) = json.loads(run(site, "targets", "--format", "json").stdout)["broken"]
    assert said in broken["message"]
    done = run(site, "compile", "gpt2", "--checkpoint", "dummy", "--target", "bad", "--dry-run")
    assert (done.exit_code, done.stderr.count("error[BU006]"), done.stderr.count("warning[BU026]")) == (2, 1, 1)


def test_two_packages_with_one_name(tmp_path: Path) -> None:
    site = install(tmp_path / "site")
    install(tmp_path / "other", name="other-target")
    (tmp_path / "other" / "other_target-1.5.dist-info").rename(site / "other_target-1.5.dist-info")
    done = run(site, "compile", "gpt2", "--checkpoint", "dummy", "--target", "scale", "--dry-run")
    assert "error[BU402]: several packages offer the target `scale`: " in done.stderr


def test_what_is_not_installed(tmp_path: Path) -> None:
    site = install(tmp_path / "site")
    file = site / "scale_target.py"
    file.write_text(file.read_text().replace('requires = ("torch",)', 'requires = ("no-such-package",)'))
    assert "no-such-package (not installed)" in run(site, "targets").stdout


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("compile --target iree-cp", {"iree-cpu"}),
        ("compile --target-option c", {"cpu=host", "cpu=generic"}),
        ("compile --target iree-cpu --target-option p", {"pack-weights=yes", "pack-weights=no"}),
        ("compile --target torch --target-option p", set()),
        ("compile --emit v", {"vmfb"}),
        ("run x --executor local-t", {"local-task"}),
    ],
)
def test_completion(line: str, words: set[str]) -> None:
    *args, incomplete = line.split()
    found = ShellComplete(cli, {}, "bringup", "_BRINGUP_COMPLETE").get_completions(args, incomplete)
    assert {item.value for item in found} == words
