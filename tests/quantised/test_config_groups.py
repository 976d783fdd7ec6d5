"""The groups of compressed-tensors' `config_groups`: which applies to a module, and the words of its weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from compressed_tensors.quantization import QuantizationArgs, QuantizationConfig, apply_quantization_config

from bringup.adapters.schemes.compressed_tensors import CompressedTensors
from bringup.adapters.schemes.registry import read_quantisation
from bringup.adapters.schemes.scheme import Modules
from tests.quantised.formats import compressed

NAMES = [f"model.layers.{k}.{module}" for k in range(2) for module in ("mlp.up_proj", "mlp.down_proj", "o_proj")]
INT4 = {"num_bits": 4, "strategy": "group", "group_size": 32, "type": "int", "symmetric": True, "dynamic": False}
WIDE = INT4 | {"group_size": 64}


def group(weights: dict[str, Any] | None, *targets: str) -> dict[str, Any]:
    return {"targets": [*targets], "weights": weights, "input_activations": None, "output_activations": None}


def read(*groups: dict[str, Any]) -> CompressedTensors:
    words = compressed("pack-quantized", INT4) | {"config_groups": {f"group_{k}": g for k, g in enumerate(groups)}}
    found = read_quantisation({"quantization_config": words}, "llama")
    assert not found.findings
    assert isinstance(found.stored, CompressedTensors)
    return found.stored


def theirs(*groups: dict[str, Any]) -> dict[str, int | None]:
    """The group size that compressed-tensors assigns to each module; None for plain ones."""
    model = torch.nn.Module()
    for name in NAMES:
        *path, last = name.split(".")
        place = model
        for each in path:
            if not hasattr(place, each):
                setattr(place, each, torch.nn.Module())
            place = getattr(place, each)
        setattr(place, last, torch.nn.Linear(64, 64))
    config = QuantizationConfig(config_groups={f"group_{k}": g for k, g in enumerate(groups)}, format="pack-quantized")
    apply_quantization_config(model, config)
    schemes = {name: getattr(model.get_submodule(name), "quantization_scheme", None) for name in NAMES}
    return {name: each and each.weights and each.weights.group_size for name, each in schemes.items()}


@pytest.mark.parametrize(
    "groups",
    [
        (group(INT4, "re:.*mlp.*"), group(WIDE, "re:.*down_proj")),
        (group(WIDE, "re:.*down_proj"), group(INT4, "re:.*mlp.*")),
        (group(INT4, "re:.*up_proj", "re:.*o_proj"), group(WIDE, "re:.*proj", "Linear")),
        (group(INT4, "Linear"), group(None, "re:.*down_proj")),
        (group(None, "re:.*mlp"), group(INT4, "Linear"), group(WIDE, "model.layers.1.mlp.up_proj")),
    ],
    ids=["wide first", "narrow first", "several expressions", "plain by expression", "plain but for one"],
)
def test_the_group_of_a_module(groups: tuple[dict[str, Any], ...]) -> None:
    stored = read(*groups)
    ours = {name: stored.weights(Modules.named(name, table=False)) for name in NAMES}
    assert {name: each and each.block[1] for name, each in ours.items()} == theirs(*groups)


@pytest.mark.parametrize(
    ("early", "block"),
    [
        ({"type": "INT", "strategy": "GROUP"}, (1, 32)),
        ({"num_bits": 8, "strategy": "Channel", "group_size": None}, (1, 0)),
        ({"strategy": "block", "group_size": None, "block_structure": "16x32"}, (16, 32)),
    ],
    ids=["capitals", "a capital", "block as a string"],
)
def test_words_of_early_versions(early: dict[str, Any], block: tuple[int, int]) -> None:
    words = INT4 | early
    args = QuantizationArgs(**words)
    assert args.block_structure in (None, [*block])
    (found,) = {read(group(words, "Linear")).weights(Modules.named(name, table=False)) for name in NAMES}
    assert found is not None
    assert (found.block, found.float, found.bits) == (block, False, args.num_bits)


@pytest.mark.parametrize("structure", ["16", "x", "0x32", [16]])
def test_a_block_that_is_none(structure: object) -> None:
    weights = INT4 | {"strategy": "block", "group_size": None, "block_structure": structure}
    words = compressed("pack-quantized", INT4) | {"config_groups": {"group_0": group(weights, "Linear")}}
    found = read_quantisation({"quantization_config": words}, "llama")
    assert [finding.code for finding in found.findings] == ["BU121"]
