"""The file of one rank, opened alone: an error with the number of ranks, and with what to name instead."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import Result

from tests.cli.conftest import Bringup
from tests.convert import models
from tests.convert.test_convert import save

PARTS = "its tensors are parts"


def divided(bringup: Bringup, tmp_path: Path, *words: object) -> Path:
    source, ranks = save(tmp_path / "source", *models.llama()), tmp_path / "ranks"
    result = bringup("convert", "--checkpoint", source, *words, "-o", ranks)
    assert result.exit_code == 0, result.output
    return ranks


def failed(bringup: Bringup, place: Path) -> Result:
    result = bringup("check", "--checkpoint", place)
    assert result.exit_code == 1
    assert result.output.count("error[") == 1, result.output
    return result


@pytest.mark.parametrize("form", ["graph", "layout", "fused"])
@pytest.mark.parametrize("suffix", ["safetensors", "npz"])
def test_a_form_whose_parts_are_not_joined(bringup: Bringup, tmp_path: Path, form: str, suffix: str) -> None:
    ranks = divided(bringup, tmp_path, "--to", form, "--format", suffix, "--tp", 2)
    result = failed(bringup, ranks / f"rank1.{suffix}")
    assert f"error[BU229]: `{ranks}/rank1.{suffix}` is rank 1 of 2 in the form `{form}`: {PARTS}" in result.output
    assert "name the checkpoint that was divided" in result.output
    assert f"`{ranks}` has the files of 2 ranks in the form `{form}`" in failed(bringup, ranks).output


def test_a_rank_that_was_converted_alone(bringup: Bringup, tmp_path: Path) -> None:
    ranks = divided(bringup, tmp_path, "--to", "fused", "--tp", 2, "--rank", 1)
    assert "is rank 1 of 2 in the form `fused`" in failed(bringup, ranks / "rank1.safetensors").output


@pytest.mark.parametrize("noted", [True, False])
@pytest.mark.parametrize(
    ("form", "file"), [("trtllm", "rank0.safetensors"), ("sharded_state", "model-rank-0-part-0.safetensors")]
)
def test_a_form_whose_folder_is_read(bringup: Bringup, tmp_path: Path, form: str, file: str, noted: bool) -> None:
    """With the bringup.json that convert writes, and as other programs write these folders."""
    ranks = divided(bringup, tmp_path, "--to", form, "--tp", 2)
    if not noted:
        (ranks / "bringup.json").unlink()
    result = failed(bringup, ranks / file)
    assert f"is rank 0 of 2 in the form `{form}`: {PARTS}" in result.output
    assert f"name the folder, {ranks}, which has all ranks" in result.output


def test_a_single_rank_is_the_model(bringup: Bringup, tmp_path: Path) -> None:
    ranks = divided(bringup, tmp_path, "--to", "graph")
    assert bringup("check", "--checkpoint", ranks / "model.safetensors").exit_code == 0


def test_one_rank_can_be_inspected(bringup: Bringup, tmp_path: Path) -> None:
    ranks = divided(bringup, tmp_path, "--to", "fused", "--tp", 2)
    assert bringup("inspect", ranks / "rank0.safetensors").exit_code == 0
