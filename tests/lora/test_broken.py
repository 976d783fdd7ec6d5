"""Every broken adapter is named by one diagnostic, and none is loaded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from bringup.cli.main import cli
from bringup.compile.job import open_job
from bringup.compile.lora.check import check_lora
from bringup.compile.lora.opening import load_lora
from bringup.compile.lora.weights import merged
from bringup.diagnostics import BringupError
from tests.lora.broken import BROKEN, SOUND, Broken
from tests.lora.written import Case, saved_base, write

OTHERS = {
    "phi3": Case("phi3", {}),
    "wider": Case("llama", {}, {"head_dim": 16}),
}


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
    folder = broken.write(sound / "lora", tmp_path / "lora")
    words = ["lora", "check" if broken.phase == "check" else "merge", str(folder)]
    words += ["--checkpoint", str(sound / broken.base)]
    if broken.phase == "check":
        result = CliRunner().invoke(cli, [*words, "--format", "json"])
        found = json.loads(result.stdout)["findings"]
        assert [finding["code"] for finding in found] == [broken.code], found
        assert result.exit_code == 1
        assert found[0]["help"]
    job = open_job(checkpoint=str(sound / broken.base))
    with pytest.raises(BringupError) as refused:
        merged(job, load_lora(job, folder))
    assert [finding.code for finding in refused.value.findings] == [broken.code]
    result = CliRunner().invoke(cli, ["lora", "merge", *words[2:], "-o", str(tmp_path / "out")])
    assert result.exit_code == 1
    assert f"[{broken.code}]" in result.stderr
    assert not (tmp_path / "out").exists()


def test_the_sound_one_fits(sound: Path) -> None:
    report = check_lora(open_job(checkpoint=str(sound / "llama")), sound / "lora")
    assert report.findings == []
    assert report.counts == {"parameters": 6, "tensors": 12, "consumed": 12, "dropped": 0}
