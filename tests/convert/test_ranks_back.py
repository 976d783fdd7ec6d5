"""TensorRT-LLM's checkpoints as a source: what `--to trtllm` wrote of every family is read by the same table."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import bringup as package
from bringup.adapters.trtllm.names import NAMES
from tests.cli.conftest import Bringup
from tests.convert import models
from tests.convert.by_hand import column, row
from tests.convert.test_convert import equal, save
from tests.convert.test_other_programs import llama_like

GATED = ("gate_proj", "up_proj", "down_proj")
PHI3 = {"architecture": "Phi3ForCausalLM", "attn_bias": False, "mlp_bias": False, "published": {}}


def written(bringup: Bringup, place: Path, name: str, *words: object) -> tuple[Path, Path]:
    """A family's published folder and its ranks, as another program writes them."""
    source = save(place / "source", *getattr(models, name)())
    result = bringup("convert", "--checkpoint", source, "--to", "trtllm", *words, "-o", place / "ranks")
    assert result.exit_code == 0, result.output
    (place / "ranks" / "bringup.json").unlink()
    return source, place / "ranks"


@pytest.mark.parametrize(("tp", "pp"), [(2, 1), (4, 1), (2, 2)])
@pytest.mark.parametrize("name", sorted(NAMES))
def test_back(bringup: Bringup, tmp_path: Path, name: str, tp: int, pp: int) -> None:
    """The arrays of the original, bit for bit; with 4 ranks two have each key head of those that have 2."""
    source, ranks = written(bringup, tmp_path, name, "--tp", tp, "--pp", pp)
    checked = bringup("check", "--checkpoint", ranks)
    assert checked.exit_code == 0, checked.output
    for checkpoint, out in ((source, "own"), (ranks, "back")):
        result = bringup("convert", "--checkpoint", checkpoint, "-o", tmp_path / out)
        assert result.exit_code == 0, result.output
    found, wanted = (load_file(tmp_path / out / "model.safetensors") for out in ("back", "own"))
    assert {array.dtype for array in found.values()} == {np.dtype("f4")}
    equal(found, wanted)
    before, after = (package.open_job(checkpoint=place).graph.config for place in (source, ranks))
    assert after == before


@pytest.mark.parametrize("text", ["llama", "qwen2"])
@pytest.mark.parametrize("original", [False, True], ids=["transformers", "original"])
def test_the_text_model_of_a_llava(bringup: Bringup, tmp_path: Path, text: str, original: bool) -> None:
    """TensorRT-LLM's LLaMAConfig reads `text_config` as the config of a Llama; the folder is a model of that family."""
    tensors, words = models.llama(bias=False, vocab=33) if text == "llama" else models.qwen2()
    images = {"vision_tower.a.weight": np.zeros(2, "f4"), "multi_modal_projector.linear_1.weight": np.zeros(2, "f4")}
    architecture = words.pop("architectures")[0]
    if original:
        kind = {"llama": ("LlavaLlamaForCausalLM", "llava_llama"), "qwen2": ("LlavaQwenForCausalLM", "llava_qwen")}[
            text
        ]
        stored, config = tensors, words | {"architectures": [kind[0]], "model_type": kind[1], "mm_vision_tower": "clip"}
        images = {"model.mm_projector.weight": np.zeros(2, "f4")}
    else:
        stored = {f"language_model.{name}": w for name, w in tensors.items()}
        config = {"architectures": ["LlavaForConditionalGeneration"], "model_type": "llava", "text_config": words}
    source = save(tmp_path / "source", stored | images, config)
    result = bringup("convert", "--checkpoint", source, "--to", "trtllm", "--tp", 2, "-o", tmp_path / "ranks")
    assert result.exit_code == 0, result.output
    for rank in range(2):
        equal(load_file(tmp_path / "ranks" / f"rank{rank}.safetensors"), llama_like(tensors, rank))
    assert json.loads((tmp_path / "ranks" / "config.json").read_text("utf-8"))["architecture"] == architecture
    alone = save(tmp_path / "alone", tensors, words | {"architectures": [architecture]})
    own, back = (package.open_job(checkpoint=folder) for folder in (alone, tmp_path / "ranks"))
    assert (back.family.name, back.graph.config) == (text, own.graph.config)
    equal(package.adapt(back), package.adapt(own))


@pytest.mark.parametrize(
    ("stated", "written"),
    [(["LlamaModel"], "LlamaForCausalLM"), ("MistralForCausalLM", "MistralForCausalLM"), (None, "LlamaForCausalLM")],
)
def test_architecture(bringup: Bringup, tmp_path: Path, stated: object, written: str) -> None:
    """MODEL_MAP of tensorrt_llm/models/__init__.py has no bare models."""
    tensors, config = models.llama(bias=False)
    source = save(tmp_path / "source", tensors, config | {"architectures": stated})
    result = bringup("convert", "llama", "--checkpoint", source, "--to", "trtllm", "-o", tmp_path / "ranks")
    assert result.exit_code == 0, result.output
    assert json.loads((tmp_path / "ranks" / "config.json").read_text("utf-8"))["architecture"] == written


EXPERTS = {
    "mixtral": ("block_sparse_moe.", "w1", "w3", "w2"),
    "qwen2_moe": ("mlp.", *GATED),
    "qwen3_moe": ("mlp.", *GATED),
}


@pytest.mark.parametrize(("tp", "ep"), [(2, 1), (2, 2), (4, 2)])
@pytest.mark.parametrize("name", EXPERTS)
def test_experts(bringup: Bringup, tmp_path: Path, name: str, tp: int, ep: int) -> None:
    """tensorrt_llm/layers/moe.py: rows of up, then of the gate, of each of a rank's experts; the router is float32.

    tensorrt_llm/mapping.py: `moe_ep_rank` is the remainder of a rank's number, `moe_tp_rank` the quotient.
    """
    source, ranks = written(bringup, tmp_path, name, "--tp", tp, "--ep", ep, "--dtype", "float16")
    tensors = load_file(source / "model.safetensors")
    place, *words = EXPERTS[name]
    for rank in range(tp):
        found = load_file(ranks / f"rank{rank}.safetensors")
        own, (at, of) = np.arange(4).reshape(ep, -1)[rank % ep], (rank // ep, tp // ep)
        for layer in range(2):
            p, t = f"model.layers.{layer}.{place}", f"transformer.layers.{layer}."

            def matrices(x: str, own=own, p=p) -> list[np.ndarray]:
                return [tensors[f"{p}experts.{e}.{x}.weight"].astype(np.float16) for e in own]

            gate, up, down = map(matrices, words)
            rows = [np.concatenate([column(u, at, of), column(g, at, of)]) for u, g in zip(up, gate, strict=True)]
            experts = {"mlp.fc": np.stack(rows), "mlp.proj": np.stack([row(w, at, of) for w in down])}
            equal({key: found[f"{t}{key}.weight"] for key in experts}, experts)
            equal({"router": found[f"{t}mlp.router.weight"]}, {"router": tensors[f"{p}gate.weight"]})
            if name == "qwen2_moe":
                gate, up, down = (tensors[f"{p}shared_expert.{x}.weight"].astype(np.float16) for x in words)
                shared = {
                    "shared_expert.fc": np.concatenate([column(up, rank, tp), column(gate, rank, tp)]),
                    "shared_expert.proj": row(down, rank, tp),
                    "shared_expert_gate": tensors[f"{p}shared_expert_gate.weight"].astype(np.float16),
                }
                equal({key: found[f"{t}{key}.weight"] for key in shared}, shared)
    config = json.loads((ranks / "config.json").read_text("utf-8"))
    assert config["mapping"] == {
        "world_size": tp, "tp_size": tp, "pp_size": 1, "moe_tp_size": tp // ep, "moe_ep_size": ep
    }  # fmt: skip
    assert config["moe"] == {"num_experts": 4, "top_k": 2, "normalization_mode": int(name != "qwen2_moe")}
    assert config["hidden_act"] == "swiglu"
    own, back = (package.adapt(package.open_job(checkpoint=folder, dtype="float16")) for folder in (source, ranks))
    equal(back, own)


@pytest.mark.parametrize(
    ("name", "words", "change"),
    [
        ("mixtral", ("--ep", 2), {}),
        ("mixtral", ("--tp", 2, "--redundant-experts", 2), {}),
        ("qwen3_moe", (), {"mlp_only_layers": [1]}),
    ],
)
def test_experts_that_the_format_does_not_have(
    bringup: Bringup, tmp_path: Path, name: str, words: tuple[object, ...], change: dict[str, object]
) -> None:
    tensors, config = getattr(models, name)()
    if change:
        tensors = {key: w for key, w in tensors.items() if "layers.1.mlp." not in key}
        shapes = {"gate_proj": (24, 16), "up_proj": (24, 16), "down_proj": (16, 24)}
        tensors |= {f"model.layers.1.mlp.{x}.weight": np.zeros(shape, "f4") for x, shape in shapes.items()}
    source = save(tmp_path / "source", tensors, config | change)
    result = bringup("convert", "--checkpoint", source, "--to", "trtllm", *words, "-o", tmp_path / "ranks")
    assert result.exit_code in (1, 2), result.output
    assert "BU140" in result.output, result.output


@pytest.mark.parametrize(
    ("words", "base", "scaling"),
    [
        ({}, 1e6, None),  # Mixtral's own default
        ({"rope_theta": 5e5}, 5e5, None),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 2e4}}, 2e4, None),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, 1e6, {"type": "linear", "factor": 2.0}),
    ],
)
def test_rope(
    bringup: Bringup, tmp_path: Path, words: dict[str, object], base: float, scaling: dict[str, object] | None
) -> None:
    """`RotaryScalingType.from_string` of tensorrt_llm/functional.py has no type `default`; transformers writes it."""
    tensors, config = models.mixtral()
    source = save(tmp_path / "source", tensors, config | words)
    result = bringup("convert", "--checkpoint", source, "--to", "trtllm", "-o", tmp_path / "ranks")
    assert result.exit_code == 0, result.output
    written = json.loads((tmp_path / "ranks" / "config.json").read_text("utf-8"))
    assert (written["rotary_base"], written["rotary_scaling"]) == (base, scaling)
    before, after = (package.open_job(checkpoint=tmp_path / name).graph.config for name in ("source", "ranks"))
    assert after == before


def test_uneven_stages(bringup: Bringup, tmp_path: Path) -> None:
    """How many layers each stage has is in its files: 1 and 2 of 3."""
    source = save(tmp_path / "source", *models.llama(layers=3))
    words = ["--to", "trtllm", "--pp", 2, "--stage-layers", "1,2"]
    assert bringup("convert", "--checkpoint", source, *words, "-o", tmp_path / "ranks").exit_code == 0
    own, back = (package.adapt(package.open_job(checkpoint=tmp_path / name)) for name in ("source", "ranks"))
    equal(back, own)


def test_a_file_too_many(bringup: Bringup, tmp_path: Path) -> None:
    """Of two ranks' files and a config of one: one finding says so, whatever else does not fit then."""
    _, ranks = written(bringup, tmp_path, "llama", "--tp", 2)
    config = json.loads((ranks / "config.json").read_text("utf-8"))
    (ranks / "config.json").write_text(json.dumps(config | {"mapping": {"tp_size": 1}}), "utf-8")
    checked = bringup("check", "--checkpoint", ranks)
    assert checked.exit_code == 1
    assert "BU229" in checked.output
    assert "it also has `rank1.safetensors`" in checked.output


def test_another_division(bringup: Bringup, tmp_path: Path) -> None:
    """Files of two ranks become those of four, as the published checkpoint does."""
    source, ranks = written(bringup, tmp_path, "gpt2", "--tp", 2)
    for checkpoint, out in ((source, "own"), (ranks, "back")):
        result = bringup("convert", "--checkpoint", checkpoint, "--to", "trtllm", "--tp", 4, "-o", tmp_path / out)
        assert result.exit_code == 0, result.output
    for rank in range(4):
        file = f"rank{rank}.safetensors"
        equal(load_file(tmp_path / "back" / file), load_file(tmp_path / "own" / file))


def test_words_of_its_own_alone(bringup: Bringup, tmp_path: Path) -> None:
    """Without what only bringup writes, TensorRT-LLM's words make the same graph, of a checkpoint that ties nothing."""
    source, ranks = written(bringup, tmp_path, "qwen3", "--tp", 2)
    words = json.loads((ranks / "config.json").read_text("utf-8"))
    assert words.pop("published") == {"model_type": "qwen3", "tie_word_embeddings": False}
    (ranks / "config.json").write_text(json.dumps(words), "utf-8")
    before, after = (package.open_job(checkpoint=place).graph.config for place in (source, ranks))
    assert after == replace(before, tied_head=after.tied_head)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"architecture": "FalconForCausalLM"}, "error[BU125]: no graph supports the architecture `FalconForCausalLM`"),
        (PHI3, "error[BU140]: the form `trtllm` is not defined for `phi3`"),
        ({"quantization": {"quant_algo": "FP8"}}, "FP8"),
        ({"num_hidden_layers": 3}, "error[BU101]"),
        ({"hidden_size": 32}, "error[BU1"),
        ({"mapping": {"tp_size": 1, "pp_size": 2}}, "error[BU1"),
    ],
)
def test_words_that_do_not_fit(bringup: Bringup, tmp_path: Path, change: dict[str, object], said: str) -> None:
    _, ranks = written(bringup, tmp_path, "llama", "--tp", 2)
    words = json.loads((ranks / "config.json").read_text("utf-8"))
    (ranks / "config.json").write_text(json.dumps(words | change), "utf-8")
    result = bringup("check", "--checkpoint", ranks)
    assert (result.exit_code, said in result.output) == (1, True), result.output


def test_a_tensor_that_one_rank_lacks(bringup: Bringup, tmp_path: Path) -> None:
    _, ranks = written(bringup, tmp_path, "llama", "--tp", 2)
    tensors = load_file(ranks / "rank1.safetensors")
    del tensors["transformer.layers.1.mlp.fc.weight"]
    tensors["transformer.layers.0.mlp.gate.weight"] = np.zeros((3, 16), "f4")
    save_file(tensors, ranks / "rank1.safetensors")
    result = bringup("check", "--checkpoint", ranks)
    assert result.exit_code == 1
    assert "`rank1.transformer.layers.1.mlp.fc.weight`" in result.output
    assert "`rank1.transformer.layers.0.mlp.gate.weight`" in result.output
