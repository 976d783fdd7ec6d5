"""The words of a `quantization_config`: each is read by its scheme, or is a finding."""

from __future__ import annotations

import json
from typing import Any

import pytest
from transformers import FineGrainedFP8Config, LlamaConfig

from bringup.adapters.schemes.fp8 import Fp8Blocks
from bringup.adapters.schemes.registry import OWN, read_quantisation, scheme_of

# GPT-QModel's words for AWQ (its `QuantizeConfig.to_dict`).
AWQ = {
    "bits": 4, "group_size": 32, "desc_act": False, "lm_head": False, "method": "awq", "quant_method": "awq",
    "format": "gemm", "checkpoint_format": "gemm", "pack_dtype": "int32", "zero_point": True, "version": "gemm",
    "meta": {"offload_to_disk": True},
}  # fmt: skip
FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}


@pytest.mark.parametrize(
    ("code", "key", "words"),
    [
        ("BU122", "quant_method", {"quant_method": "awqq", "weight_block_size": [128, 128]}),
        ("BU122", "quant_method", {"weight_block_size": [128, 128]}),
        ("BU122", "quant_method", {"quant_method": 8}),
        ("BU121", "weight_block_size", FP8 | {"weight_block_size": [128]}),
        ("BU121", "weight_block_size", FP8 | {"weight_block_size": [128, 0]}),
        ("BU122", "fmt", FP8 | {"fmt": "e5m2"}),
        (
            "BU122",
            "modules_to_not_convert",
            FP8 | {"modules_to_not_convert": ["lm_head", r"model\\.(layers\\.0|norm"]},
        ),
        ("BU122", "expert_dtype", FP8 | {"expert_dtype": "fp4"}),
        ("BU121", "dequantize", FP8 | {"dequantize": "no"}),
        ("BU120", "weight_block_sizes", FP8 | {"weight_block_sizes": [64, 64]}),
        ("BU120", "bits", {"quant_method": "mxfp4", "bits": 3}),
        ("BU122", "checkpoint_format", AWQ | {"checkpoint_format": "gemv"}),
        ("BU122", "desc_act", AWQ | {"desc_act": True}),
        ("BU122", "lm_head", AWQ | {"lm_head": True}),
        ("BU122", "dynamic", AWQ | {"dynamic": {"-:.*down_proj": {}}}),
    ],
)
def test_words_that_are_refused(code: str, key: str, words: dict[str, Any]) -> None:
    found = read_quantisation({"quantization_config": words}, "llama")
    assert [(finding.code, finding.parameter) for finding in found.findings] == [(code, key)]


def test_words_that_are_read() -> None:
    written = json.loads(LlamaConfig(quantization_config=FineGrainedFP8Config()).to_json_string())
    found = read_quantisation(written, "llama")
    assert not found.findings
    assert isinstance(found.stored, Fp8Blocks)
    assert found.stored.block == (128, 128)
    assert not read_quantisation({"quantization_config": AWQ}, "llama").findings
    assert read_quantisation({}, "llama").stored is None
    assert read_quantisation({"quantization_config": None}, "llama").stored is None


@pytest.mark.parametrize("method", OWN)
def test_each_scheme_is_registered_by_its_methods(method: str) -> None:
    scheme = scheme_of(method)
    assert scheme is not None
    assert method in scheme.methods
