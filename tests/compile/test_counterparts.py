"""Modules with other names than the reference's: pairs by tensors, and the module that is named for a fault in one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

from bringup.compile.bisect.eager import Eager
from bringup.compile.bisect.locate import Place, located
from bringup.compile.bisect.modules import compared, not_counterparts
from bringup.compile.bisect.observation import Observation
from bringup.compile.job import Job
from bringup.compile.parity.owners import counterparts, owners_by_name, renamed
from bringup.compile.parity.parity import TOLERANCE, Layer
from bringup.compile.parity.reference import INPUT, Observed, Reference
from bringup.compile.program.step_inputs import sequence_step
from bringup.graphs.registry import FAMILIES
from tests.models import family, parity

TOKENS = 24
Plant = Callable[[Any], None]


@dataclass(frozen=True)
class Compared:
    """A family's first case: the names of the reference where they differ, and what a comparison finds."""

    names: Mapping[str, str]
    layers: Sequence[Layer]
    agrees: bool
    place: Place

    @property
    def named(self) -> str:
        return self.place.layer.name if self.place.layer else ""


@cache
def opened(name: str, folder: Path) -> tuple[Job, list[int], Observed]:
    module = import_module(f"tests.models.test_{name}")
    job = family.written(module, next(iter(module.CASES)), folder / name).job()
    tokens = parity.random_tokens(TOKENS, job.graph.config.vocab_size)
    return job, tokens, Reference(job.checkpoint, job.config, "float32").observe(tokens)


def compare(name: str, folder: Path, plant: Plant | None = None) -> Compared:
    job, tokens, reference = opened(name, folder)
    graph = Eager(job, len(tokens))
    if plant:
        with torch.no_grad():
            plant(graph.module)
    arrays = reference.activations(tokens)
    names = counterparts(job.plan, reference.owners, {key.partition(INPUT)[0] for key in arrays})
    rows = renamed(arrays, names, INPUT)
    step = sequence_step(tokens, 0, len(tokens), len(tokens))
    seen = Observation(graph, step, rows, logits=reference.logits(tokens))
    agrees = (seen.trial("", []).output or 0.0) <= TOLERANCE
    layers = list(compared(seen.seen, rows, names))
    other = not_counterparts(layers, TOLERANCE, agrees=agrees)
    seen.exclude(other)
    layers = [layer for layer in layers if layer.name not in other]
    return Compared(names, layers, agrees, located(seen, layers, TOLERANCE))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("counterparts")


WITH_A_REFERENCE = [
    each.name
    for each in FAMILIES
    if each.name not in ("deepseek_mtp", "eagle3", "qwen3_mtp", "exaone", "internlm", "qwen")
]
FAST = ("lfm2", "granitemoehybrid")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in WITH_A_REFERENCE]
)
def test_no_pair_departs_with_the_right_weights(name: str, folder: Path) -> None:
    found = compare(name, folder)
    assert found.agrees
    assert found.named == ""
    assert [layer.name for layer in found.layers if layer.counterpart and layer.departs(TOLERANCE)] == []


def test_the_pairs_of_two_families(folder: Path) -> None:
    """Layer 0 is recurrent in both."""
    first = "model.layers.0."

    def pairs(name: str) -> dict[str, str]:
        layers = compare(name, folder).layers
        return {
            layer.name.removeprefix(first): layer.counterpart.removeprefix(first)
            for layer in layers
            if layer.counterpart and layer.name.startswith(first)
        }

    assert pairs("lfm2") == {
        "input_layernorm": "operator_norm",
        "mixer": "conv",
        "mixer.out_proj": "conv.out_proj",
        "post_attention_layernorm": "ffn_norm",
        "mlp": "feed_forward",
        "mlp.gate_proj": "feed_forward.w1",
        "mlp.up_proj": "feed_forward.w3",
        "mlp.down_proj": "feed_forward.w2",
    }
    granite = pairs("granitemoehybrid")
    assert granite["mixer"] == "mamba"
    assert granite["mlp.experts"] == "block_sparse_moe.experts"
    assert granite["mlp.shared_mlp"] == "shared_mlp"
    assert "mixer.conv1d" not in granite
    assert "mixer.gated_norm" not in granite  # transformers' norm applies the gate too


def test_pairs_with_a_file_are_those_with_the_model(folder: Path) -> None:
    """A file has names only; those of LFM2's modules are the first sections of its tensors' names."""
    job, _, reference = opened("lfm2", folder)
    modules = {key.partition(INPUT)[0] for key in reference.arrays}
    owners = owners_by_name(modules, job.plan)
    assert counterparts(job.plan, owners, modules) == compare("lfm2", folder).names


def changed(path: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Plant:
    """A fault in the parameter at a path."""

    def plant(module: Any) -> None:
        parameter = module.get_parameter(path)
        parameter.copy_(change(parameter))

    return plant


def setting(path: str, name: str, value: Any) -> Plant:
    """A fault in a setting of the module at a path."""

    def plant(module: Any) -> None:
        setattr(module.get_submodule(path), name, value)

    return plant


def rope_of_other_base(module: Any) -> None:
    table = module.gpt_neox.rotary.cos
    table.copy_((table.clamp(-1, 1).acos() * 0.9).cos())


FIRST = "model.layers.0"
# The family, the fault, and the module that is named with the first of its parts that gets another input.
FAULTS: dict[str, tuple[str, Plant, str, str]] = {
    "eps": ("lfm2", setting(f"{FIRST}.input_layernorm", "eps", 0.5), f"{FIRST}.input_layernorm", ""),
    "taps reversed": ("lfm2", changed(f"{FIRST}.mixer.conv.weight", lambda w: w.flip(1)), f"{FIRST}.mixer", "out_proj"),
    "a weight": ("lfm2", changed(f"{FIRST}.mixer.out_proj.weight", lambda w: w * 1.01), f"{FIRST}.mixer.out_proj", ""),
    "activation": ("lfm2", setting(f"{FIRST}.mlp", "activation", "gelu"), f"{FIRST}.mlp", "down_proj"),
    "dt bias": (
        "granitemoehybrid", changed(f"{FIRST}.mixer.dt_bias", torch.zeros_like), f"{FIRST}.mixer", "out_proj"
    ),
    "decay": ("granitemoehybrid", changed(f"{FIRST}.mixer.A_log", torch.neg), f"{FIRST}.mixer", "out_proj"),
    "residual factor": (
        "granitemoehybrid", setting(FIRST, "residual", 1.5), FIRST, f"{FIRST}.post_attention_layernorm"
    ),
    "normalisation of experts": ("granitemoehybrid", setting(f"{FIRST}.mlp", "normalise", False), FIRST, "mlp.experts"),
    "experts": (
        "granitemoehybrid", setting(f"{FIRST}.mlp.experts", "activation", "gelu"), f"{FIRST}.mlp.experts", ""
    ),
    "rope": ("gpt_neox", rope_of_other_base, "gpt_neox.layers.0.attention", "o_proj"),
    "embedding factor": ("granitemoehybrid", setting("", "embedding_multiplier", 1.0), "", FIRST),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_the_innermost_module_is_named(fault: str, folder: Path) -> None:
    name, plant, wanted, before = FAULTS[fault]
    found = compare(name, folder, plant)
    assert not found.agrees
    assert found.named == wanted
    assert found.place.before.endswith(before)
    assert bool(found.place.before) == bool(before)
    assert (found.place.rope > TOLERANCE) == (fault == "rope")


def test_a_fault_in_every_layer_is_found_in_the_first(folder: Path) -> None:
    """Each layer after the first departs too, alone and in what it inherits."""

    def plant(module: Any) -> None:
        for layer in module.model.layers:
            layer.post_attention_layernorm.eps = 0.5
            layer.input_layernorm.eps = 0.5

    assert compare("lfm2", folder, plant).named == f"{FIRST}.input_layernorm"
