"""Adapters with one typical mistake each: the change to a valid adapter, and the expected code.

The valid one is written by peft, with rank 4 on q, v and down of a Llama with 2 layers. benchmarks/lora_faults.py
writes docs/lora-faults.md from this table.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from bringup.compile.job import open_job
from bringup.compile.lora.check import check_lora
from bringup.compile.lora.opening import load_lora
from bringup.compile.lora.weights import merged
from bringup.diagnostics import BringupError, Diagnostic
from tests.lora.written import Case

SOUND = Case("llama", {"r": 4, "lora_alpha": 16, "target_modules": ["q_proj", "v_proj", "down_proj"]})
STEM = "base_model.model.model.layers."
TENSORS, CONFIG = "adapter_model.safetensors", "adapter_config.json"


OTHERS = {"phi3": Case("phi3", {}), "wider": Case("llama", {}, {"head_dim": 16})}


class Folder:
    """An adapter's folder that is being spoilt."""

    def __init__(self, folder: Path) -> None:
        self.path = folder
        self.tensors: dict[str, np.ndarray] = load_file(folder / TENSORS)
        self.words: dict[str, Any] = json.loads((folder / CONFIG).read_text())

    def write(self) -> None:
        save_file({name: np.ascontiguousarray(array) for name, array in self.tensors.items()}, self.path / TENSORS)
        (self.path / CONFIG).write_text(json.dumps(self.words))

    def rename(self, change: Callable[[str], str]) -> None:
        self.tensors = {change(name): array for name, array in self.tensors.items()}

    def each(self, end: str, change: Callable[[np.ndarray], np.ndarray]) -> None:
        self.tensors = {n: change(array) if n.endswith(end) else array for n, array in self.tensors.items()}


@dataclass(frozen=True)
class Broken:
    """One mistake. `base`: another base than the sound one's. `phase`: what names it, `check` from headers, or
    `merge`, which reads values. `after` spoils the files as they were written."""

    title: str
    code: str
    spoil: Callable[[Folder], None]
    base: str = "llama"
    phase: str = "check"
    after: Callable[[Path], None] = lambda folder: None

    @property
    def key(self) -> str:
        return self.title.lower().replace("`", "").replace(" ", "-")

    def write(self, sound: Path, folder: Path) -> Path:
        shutil.copytree(sound, folder)
        opened = Folder(folder)
        self.spoil(opened)
        opened.write()
        self.after(folder)
        return folder


def _nothing(folder: Folder) -> None:
    pass


def _word(name: str, value: Any) -> Callable[[Folder], None]:
    return lambda folder: folder.words.update({name: value})


def _without(name: str) -> Callable[[Folder], None]:
    def spoil(folder: Folder) -> None:
        del folder.words[name]

    return spoil


def _half(folder: Folder) -> None:
    del folder.tensors[f"{STEM}1.self_attn.v_proj.lora_B.weight"]


def _transposed(folder: Folder) -> None:
    folder.each("lora_A.weight", np.transpose)


def _wider(folder: Folder) -> None:
    folder.each("q_proj.lora_A.weight", lambda a: np.concatenate([a, a], axis=1))


def _deeper(folder: Folder) -> None:
    folder.rename(lambda name: name.replace("layers.1.", "layers.7."))


def _wrapped(folder: Folder) -> None:
    folder.rename(lambda name: name.replace("model.model.layers", "model.language_model.text.layers"))


def _dora(folder: Folder) -> None:
    folder.words["use_dora"] = True
    for layer in range(2):
        for x, out in (("self_attn.q_proj", 32), ("self_attn.v_proj", 16), ("mlp.down_proj", 32)):
            folder.tensors[f"{STEM}{layer}.{x}.lora_magnitude_vector"] = np.full(out, 2.0, np.float32)
    del folder.tensors[f"{STEM}1.mlp.down_proj.lora_magnitude_vector"]


def _biases(folder: Folder) -> None:
    folder.words["bias"] = "lora_only"
    for layer in range(2):
        folder.tensors[f"{STEM}{layer}.self_attn.q_proj.base_layer.bias"] = np.ones(32, np.float32)


def _rows(folder: Folder) -> None:
    folder.words["trainable_token_indices"] = [3, 64]
    rows = np.ones((2, 32), np.float32)
    folder.tensors["base_model.model.model.embed_tokens.token_adapter.trainable_tokens_delta"] = rows


def _norm(folder: Folder) -> None:
    folder.tensors["base_model.model.model.norm.weight"] = np.full(32, 3.0, np.float32)


def _two_adapters(folder: Folder) -> None:
    """As they are called in memory, where each has a name."""
    named = {name.replace(".weight", ".default.weight"): array for name, array in folder.tensors.items()}
    folder.tensors = named | {name.replace("default", "second"): array * 2 for name, array in named.items()}


def _two_names(folder: Folder) -> None:
    folder.tensors |= {name.replace("model.model.layers", "model.layers"): a * 2 for name, a in folder.tensors.items()}


def _resized(folder: Folder) -> None:
    folder.tensors["base_model.model.model.embed_tokens.base_layer.weight"] = np.ones((66, 32), np.float32)


def _another_copy(folder: Folder) -> None:
    folder.tensors["base_model.model.lm_head.base_layer.weight"] = np.ones((64, 32), np.float32)


def _empty(folder: Folder) -> None:
    folder.tensors = {}


def _untrained(folder: Folder) -> None:
    folder.each("lora_B.weight", np.zeros_like)


def _overflown(folder: Folder) -> None:
    folder.tensors[f"{STEM}0.self_attn.q_proj.lora_B.weight"][3, 1] = np.inf


def _cut(folder: Path) -> None:
    data = (folder / TENSORS).read_bytes()
    (folder / TENSORS).write_bytes(data[: len(data) * 2 // 3])


BROKEN = (
    Broken("The base is of another family", "BU162", _nothing, base="phi3"),
    Broken("The base is wider", "BU165", _nothing, base="wider"),
    Broken("Names begin with another wrapper", "BU162", _wrapped),
    Broken("Layers are those of a deeper model", "BU162", _deeper),
    Broken("One B is missing", "BU163", _half),
    Broken("The config states another rank", "BU164", _word("r", 8)),
    Broken("The config states no rank", "BU160", _without("r")),
    Broken("The config states no alpha", "BU160", _without("lora_alpha")),
    Broken("Alpha is a text", "BU160", _word("lora_alpha", "sixteen")),
    Broken("A is stored transposed", "BU164", _transposed),
    Broken("A of one module has twice the inputs", "BU165", _wider),
    Broken("A magnitude of DoRA is missing", "BU163", _dora),
    Broken("The method is VeRA", "BU161", _word("peft_type", "VERA")),
    Broken("Biases were trained that the base does not have", "BU168", _biases),
    Broken("The trained head is missing", "BU166", _word("modules_to_save", ["lm_head"])),
    Broken("A trained token is not in the vocabulary", "BU165", _rows),
    Broken("The adapter was initialised by PiSSA", "BU161", _word("init_lora_weights", "pissa")),
    Broken("The config has an unknown key", "BU161", _word("output_gain", 2.0)),
    Broken("The config names fewer modules", "BU166", _word("target_modules", ["q_proj", "v_proj"])),
    Broken("The config names more modules", "BU166", _word("target_modules", r".*\.([qvo]|down)_proj")),
    Broken("A norm is among the factors", "BU168", _norm),
    Broken("There are two adapters", "BU168", _two_adapters),
    Broken("Modules have two names", "BU168", _two_names),
    Broken("The vocabulary was resized", "BU165", _resized),
    Broken("The head is not the base's", "BU168", _another_copy, phase="merge"),
    Broken("There are no tensors", "BU169", _empty),
    Broken("B is all zeros", "BU169", _untrained, phase="merge"),
    Broken("One value is infinite", "BU172", _overflown, phase="merge"),
    Broken("adapter_config.json is missing", "BU160", _nothing, after=lambda folder: (folder / CONFIG).unlink()),
    Broken("adapter_config.json is cut off", "BU160", _nothing, after=lambda folder: _config_cut(folder)),
    Broken("The file of tensors is cut off", "BU208", _nothing, after=_cut),
)  # fmt: skip


def _config_cut(folder: Path) -> None:
    text = (folder / CONFIG).read_text()
    (folder / CONFIG).write_text(text[: len(text) // 2])


def findings(broken: Broken, base: Path, folder: Path) -> list[Diagnostic]:
    """What `lora check` says of the folder, and where that says nothing what `lora merge` does."""
    job = open_job(checkpoint=str(base))
    report = check_lora(job, folder)
    if broken.phase == "check":
        return report.findings
    assert report.findings == []
    with pytest.raises(BringupError) as refused:
        merged(job, load_lora(job, folder))
    return list(refused.value.findings)
