"""`check --values`: what a compile would find in the values, found without one."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from bringup.cli.main import cli
from bringup.compile.check.values import value_findings
from bringup.compile.job import open_job
from tests.check.mutations.bases import base
from tests.check.mutations.mutation import Trial

MATRIX = "model.layers.1.mlp.gate_proj.weight"


def tied(trial: Trial) -> None:
    trial.config["tie_word_embeddings"] = True


def not_a_number(trial: Trial) -> None:
    trial.change(MATRIX, lambda array: np.where(np.arange(array.shape[1]) == 3, np.float32("nan"), array))


def infinite(trial: Trial) -> None:
    trial.change(MATRIX, lambda array: array + np.float32("inf"))


def zeros(trial: Trial) -> None:
    trial.change(MATRIX, np.zeros_like)


CASES = {"BU114": (tied, "lm_head.weight", 0), "BU134": (zeros, MATRIX, 0)}
CASES |= {"BU133": (not_a_number, MATRIX, 1), "BU133-infinity": (infinite, MATRIX, 1)}


@pytest.mark.parametrize("case", CASES)
def test_values_are_checked_on_request(case: str, tmp_path: Path) -> None:
    spoil, parameter, status = CASES[case]
    trial = Trial(base("llama"))
    spoil(trial)
    words = trial.write(tmp_path / "model").words()
    headers = CliRunner().invoke(cli, [*words, "--format", "json"])
    assert (headers.exit_code, json.loads(headers.stdout)["findings"]) == (0, [])
    result = CliRunner().invoke(cli, [*words, "--values", "--format", "json"])
    assert result.exit_code == status, result.output
    found = json.loads(result.stdout)["findings"]
    assert [(finding["code"], finding["parameter"]) for finding in found] == [(case[:5], parameter)]


@pytest.mark.parametrize("name", ["gpt2", "llama", "mixtral"])
def test_sound_values_pass(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    Trial(base(name)).write(folder)
    assert value_findings(open_job(checkpoint=str(folder))) == []


def test_values_wait_for_the_headers(tmp_path: Path) -> None:
    trial = Trial(base("llama"))
    zeros(trial)
    del trial.tensors["model.norm.weight"]
    result = CliRunner().invoke(cli, [*trial.write(tmp_path / "model").words(), "--values"])
    assert result.exit_code == 1
    assert "BU101" in result.stdout
    assert "BU134" not in result.stdout
    assert "values were not read" in result.stderr
