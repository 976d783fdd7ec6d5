"""Every broken adapter is named by one diagnostic, and none is loaded."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from safetensors.torch import load_file, save_file

from bringup.adapters.lora.files import open_lora
from bringup.cli.main import cli
from bringup.compile.job import open_job
from bringup.compile.lora.check import check_lora
from bringup.compile.lora.opening import load_lora
from bringup.compile.lora.weights import merged
from bringup.diagnostics import BringupError
from tests.check.drafts import ROOT
from tests.lora.broken import BROKEN, OTHERS, SOUND, Broken, findings
from tests.lora.written import Case, saved_base, write

PAGE = (ROOT / "docs/lora-faults.md").read_text("utf-8")
ROW = re.compile(r"^\| \[(.+)\]\(#\S+\) \| (BU\d+) \((\w+)\) \| ", re.MULTILINE)


@pytest.fixture(scope="module")
def sound(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("sound")
    write(SOUND, folder)
    (folder / "base").rename(folder / "llama")
    for name, case in OTHERS.items():
        saved_base(case, folder / name)
    return folder


@pytest.mark.parametrize("broken", BROKEN, ids=[broken.key for broken in BROKEN])
def test_it_is_named_once_and_not_loaded(broken: Broken, sound: Path, tmp_path: Path) -> None:
    folder, base = broken.write(sound / "lora", tmp_path / broken.key / "lora"), sound / broken.base
    found = findings(broken, base, folder)
    assert [finding.code for finding in found] == [broken.code], found
    assert found[0].help
    text = f"{found[0].severity}[{found[0].code}]: {found[0].message}\n  = help: {found[0].help}"
    text = text.replace(f"{tmp_path}/", "").replace(f"{sound}/", "")
    assert f"\n```text\n{text}\n```\n" in PAGE, "write the page again: python -m benchmarks.lora_faults"
    job = open_job(checkpoint=str(base))
    with pytest.raises(BringupError, match=broken.code):
        merged(job, load_lora(job, folder))


@pytest.mark.parametrize("broken", BROKEN[::7], ids=[broken.key for broken in BROKEN[::7]])
def test_the_commands_say_the_same(broken: Broken, sound: Path, tmp_path: Path) -> None:
    words = [str(broken.write(sound / "lora", tmp_path / "lora")), "--checkpoint", str(sound / broken.base)]
    result = CliRunner().invoke(cli, ["lora", "check", *words, "--format", "json"])
    assert result.exit_code == 1
    assert [finding["code"] for finding in json.loads(result.stdout)["findings"]] == [broken.code]
    result = CliRunner().invoke(cli, ["lora", "merge", *words, "-o", str(tmp_path / "out")])
    assert result.exit_code == 1
    assert f"[{broken.code}]" in result.stderr
    assert not (tmp_path / "out").exists()


def test_links_that_lead_nowhere(tmp_path: Path) -> None:
    """The error names the link, not the folder that it is in."""
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "dangling").symlink_to("missing")
    for name, code, message in (("loop", "BU233", "symbolic links"), ("dangling", "BU034", "no such file")):
        with pytest.raises(BringupError, match=message) as raised:
            open_lora(tmp_path / name)
        assert (raised.value.findings[0].code, raised.value.findings[0].file) == (code, str(tmp_path / name))


def test_the_page_has_every_one() -> None:
    assert ROW.findall(PAGE) == [(broken.title, broken.code, broken.phase) for broken in BROKEN]
    assert f"bringup reports each of {len(BROKEN)} with one diagnostic and loads none" in PAGE


def test_the_sound_one_fits(sound: Path) -> None:
    report = check_lora(open_job(checkpoint=str(sound / "llama")), sound / "lora")
    assert report.findings == []
    assert report.counts == {"parameters": 6, "tensors": 12, "consumed": 12, "dropped": 0}


def test_factors_of_a_convolution(tmp_path: Path) -> None:
    """peft trains them if the rank is a multiple of the convolution's groups."""
    case = Case("lfm2", {"r": 32, "target_modules": r".*\.conv\.conv|.*\.q_proj"})
    written = write(case, tmp_path)
    (found,) = load_lora(open_job(checkpoint=str(written.base)), written.lora).findings
    assert found.code == "BU161"
    assert "lora_A.weight` [32, 32, 3]" in found.message
    assert "without `conv` in `target_modules`" in found.help


def test_factors_with_another_axis_are_no_convolution(tmp_path: Path) -> None:
    """Of a projection, and of each expert."""
    settings = {"r": 4, "target_modules": ["v_proj"], "target_parameters": ["mixer.experts.up_proj"]}
    written = write(Case("nemotron_h", settings), tmp_path)
    file = written.lora / "adapter_model.safetensors"
    tensors = load_file(file)
    for name, array in tensors.items():
        shape = (4, -1, array.shape[-1]) if "experts" in name and "lora_A" in name else (*array.shape, 1)
        tensors[name] = array.reshape(shape)
    save_file(tensors, file)
    found = load_lora(open_job(checkpoint=str(written.base)), written.lora).findings
    assert {each.code for each in found} == {"BU164"}
