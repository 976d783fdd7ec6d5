"""Signatures: names as torch gives them, round trips, and graphs that are not ours."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
import torch

from bringup.diagnostics import BringupError
from bringup.graphs.core.axes import AxesError
from bringup.graphs.core.module import Const, State
from bringup.graphs.core.signature import Signature
from bringup.graphs.core.step import CacheSizes
from bringup.graphs.core.to_torch import to_torch
from bringup.graphs.gpt2 import GPT2, SIZES, GPT2Config
from bringup.graphs.layers.kv_cache import KVCache
from bringup.graphs.llama import Llama, LlamaConfig

# layers, parameters: huggingface.co/openai-community/gpt2*, `lm_head` counted with its tied `wte` once
PUBLISHED = {"gpt2": 124_439_808, "gpt2-medium": 354_823_168, "gpt2-large": 774_030_080, "gpt2-xl": 1_557_611_200}


@pytest.mark.parametrize("name", PUBLISHED)
def test_gpt2_has_the_published_number_of_parameters(name):
    signature = GPT2(GPT2Config.from_hf(SIZES[name])).signature()
    count = sum(declared.nbytes // 4 for declared in signature.values() if declared.name != "lm_head.weight")
    assert count == PUBLISHED[name]


def test_names_and_shapes_are_those_of_the_torch_module():
    graph = GPT2(GPT2Config.from_hf(SIZES["gpt2"]), "bfloat16")
    module = to_torch(graph, graph.dtype, CacheSizes(context=64))
    parameters = {name: (tuple(p.shape), p.dtype) for name, p in module.named_parameters()}
    assert parameters == {name: (d.storage[0], torch.bfloat16) for name, d in graph.signature().items()}
    assert {name for name, _ in module.named_buffers()} == {name for name, _ in graph.leaves(State)}


@pytest.mark.parametrize("sizes", [(2, 8, 16), (2, 4, 16), (1, 8, 16), (2, 8, None)])
def test_a_shared_state_has_the_sizes_of_the_other(sizes: tuple[int, int, int | None]):
    other = KVCache(2, 8, 16)
    if sizes == (2, 8, 16):
        assert KVCache(*sizes, of=other).k.of is other.k
    else:
        with pytest.raises(AxesError, match="would share"):
            KVCache(*sizes, of=other)


def test_tables_are_buffers_with_their_values():
    config = LlamaConfig.from_hf(
        {"vocab_size": 8, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    )
    graph = Llama(config)
    module = to_torch(graph, "float32", CacheSizes(context=5))
    tables = dict(graph.leaves(Const))
    assert tables.keys() == {"model.rotary.cos", "model.rotary.sin"}
    assert dict(module.named_buffers())["model.rotary.sin"].shape == (5, 2)
    assert not any("rotary" in name for name in graph.signature())


def test_json_round_trip(tmp_path):
    signature = GPT2(GPT2Config.from_hf(SIZES["gpt2"])).signature()
    path = tmp_path / "signature.json"
    path.write_text(signature.to_json())
    again = Signature.from_json(path)
    assert [(d.name, d.axes, d.dtype) for d in again.values()] == [
        (d.name, d.axes, d.dtype) for d in signature.values()
    ]


def test_broken_json_is_reported(tmp_path):
    path = tmp_path / "signature.json"
    path.write_text('{"w": {"axes": "a b", "sizes": {"a": 2}, "dtype": "float32", "pack": null}}')
    with pytest.raises(BringupError, match="BU123"):
        Signature.from_json(path)


def test_equal_layers_are_of_one_kind():
    raw = SIZES["gpt2"]
    assert GPT2(GPT2Config.from_hf(raw)).layer_classes() == [0] * 12
    scaled = GPT2(GPT2Config.from_hf(raw | {"scale_attn_by_inverse_layer_idx": True, "n_layer": 3}))
    assert scaled.layer_classes() == [0, 1, 2]
    windows = {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"] * 2}
    shape = {"vocab_size": 8, "hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 2}
    config = LlamaConfig.from_hf(shape | {"num_hidden_layers": 4} | windows)
    assert Llama(config).layer_classes() == [0, 1, 0, 1]


def test_a_large_signature_takes_milliseconds():
    shape = {"vocab_size": 128256, "hidden_size": 16384, "intermediate_size": 53248, "num_hidden_layers": 126}
    heads = {"num_attention_heads": 128, "num_key_value_heads": 8}
    start = time.process_time()
    signature = Llama(LlamaConfig.from_hf(shape | heads)).signature()
    assert len(signature) == 1137
    assert time.process_time() - start < 1.0  # about 30 ms; a second would mean work per element


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("sizes", {"out": size, "in": 4}) for size in ("x", -3, 0, float("inf"), 2.5, True, None, 1 << 60)),
        ("sizes", {"out": 4, "in": 4, "more": 4}), ("sizes", {"out": 4}), ("sizes", [4, 4]), ("sizes", None),
        ("axes", 7), ("axes", "out ("), ("dtype", 7), ("dtype", []), ("dtype", "fp16"),
        *(("pack", pack) for pack in (["out"], ["out", 3], ["out", -8], ["out", "x"], ["no", 2], "x", 7, ["out", 0])),
    ],
)  # fmt: skip
def test_a_file_with_a_wrong_value_is_no_signature(tmp_path: Path, key: str, value: object) -> None:
    row = {"axes": "out in", "sizes": {"out": 4, "in": 4}, "dtype": "float32", "pack": None}
    file = tmp_path / "signature.json"
    file.write_text(json.dumps({"w": row}), "utf-8")
    assert Signature.from_json(file)["w"].storage == ((4, 4), "float32")
    file.write_text(json.dumps({"w": row | {key: value}}), "utf-8")
    with pytest.raises(BringupError, match="BU123"):
        Signature.from_json(file)
