"""A draft's layer beside a model is dropped where the draft's own tensors are, and no layer of the model with it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from bringup.compile.job import open_job
from bringup.compile.pipeline import check
from tests.models import parity, test_deepseek_v3, test_glm4_moe

CONFIGS = {
    "deepseek_v3": test_deepseek_v3.CASES["groups-yarn"],  # three layers
    "glm4_moe": test_glm4_moe.CASES["groups-tied"],
}
LAYERS, OWN = 3, ("enorm", "hnorm", "eh_proj", "shared_head.norm", "embed_tokens")


@pytest.fixture(scope="module", params=CONFIGS)
def checkpoint(request, tmp_path_factory) -> Path:
    """A model whose last layer is followed by a draft's, with all that a layer has."""
    folder = parity.save_checkpoint(CONFIGS[request.param], tmp_path_factory.mktemp(request.param))
    tensors = load_file(folder / "model.safetensors")
    last, at = f"model.layers.{LAYERS - 1}.", f"model.layers.{LAYERS}."
    tensors |= {name.replace(last, at): array.clone() for name, array in tensors.items() if name.startswith(last)}
    tensors |= {f"{at}{name}.weight": torch.zeros(3, 4) for name in OWN}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def findings_of(folder: Path, **words: int) -> list[tuple[str, str]]:
    """Code and place of each finding, where config.json has other words."""
    raw = json.loads((folder / "config.json").read_text("utf-8")) | words
    found = check(open_job(checkpoint=str(folder), config=raw)).findings
    return [(finding.code, ".".join(finding.sources[0].split(".")[:3])) for finding in found]


def without(folder: Path, out: Path, part: str) -> Path:
    """The checkpoint without the draft's tensors whose names have this part."""
    tensors = load_file(folder / "model.safetensors")
    rest = {name: t for name, t in tensors.items() if f"layers.{LAYERS}.{part}" not in name}
    assert len(rest) < len(tensors)
    save_file(rest, out / "model.safetensors", metadata={"format": "pt"})
    (out / "config.json").write_text((folder / "config.json").read_text("utf-8"), "utf-8")
    return out


def test_the_draft_is_dropped(checkpoint: Path) -> None:
    assert findings_of(checkpoint, num_nextn_predict_layers=1) == []
    assert findings_of(checkpoint, num_nextn_predict_layers=0) == [("BU105", f"model.layers.{LAYERS}")]


@pytest.mark.parametrize("drafts", [1, 2])
def test_one_layer_too_few(checkpoint: Path, drafts: int) -> None:
    """The model's last layer lies where the config has the draft's; the draft itself may be one of two."""
    found = findings_of(checkpoint, num_hidden_layers=LAYERS - 1, num_nextn_predict_layers=drafts)
    assert found == [("BU105", f"model.layers.{LAYERS - 1}")]


def test_one_layer_too_few_where_there_is_no_draft(checkpoint: Path, tmp_path: Path) -> None:
    folder = without(checkpoint, tmp_path, "")
    assert findings_of(folder) == []
    assert findings_of(folder, num_hidden_layers=LAYERS - 1) == [("BU105", f"model.layers.{LAYERS - 1}")]


def test_a_layer_without_what_makes_it_a_draft(checkpoint: Path, tmp_path: Path) -> None:
    assert findings_of(without(checkpoint, tmp_path, "eh_proj")) == [("BU105", f"model.layers.{LAYERS}")]


def test_one_layer_too_many(checkpoint: Path) -> None:
    """The draft's layer has all that a layer needs, and tensors that no layer has."""
    raw = json.loads((checkpoint / "config.json").read_text("utf-8")) | {"num_hidden_layers": LAYERS + 1}
    (finding,) = check(open_job(checkpoint=str(checkpoint), config=raw)).findings
    assert finding.code == "BU105"
    assert finding.help.startswith(f"correct `num_hidden_layers` to {LAYERS} ")
