"""LoraWeights and LoraConfig, against the example and the words of TensorRT-LLM's docs/source/advanced/lora.md.

The tensors that are wanted are put together here from what peft saved, by that document alone.
"""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from bringup.adapters.apply.materialise import materialise
from bringup.adapters.apply.parallel import Parallel
from bringup.adapters.apply.rank_plan import Stages, rank_plan
from bringup.adapters.lora.files import open_lora
from bringup.adapters.lora.merge import delta
from bringup.adapters.trtllm.lora_modules import IDS, cross_attention, module_id
from bringup.compile.job import open_job
from bringup.compile.lora.convert import convert_lora, request_tensors, restore_lora
from bringup.compile.lora.opening import load_lora
from bringup.diagnostics import BringupError
from tests.lora.written import TOKENS, Case, write

# The example: 4 layers of width 4; module 1 is q and 2 is k; the last two layers adapt q alone.
EXAMPLE = [[1, 0, 2], [2, 0, 4], [1, 1, 2], [2, 1, 4], [1, 2, 2], [1, 3, 8]]
ALPHA = 6.0


@pytest.fixture
def example(tmp_path):
    """The base of the example, and its adapter as peft would save it."""
    config = LlamaConfig(
        hidden_size=4, intermediate_size=6, num_hidden_layers=4, num_attention_heads=2, num_key_value_heads=2,
        vocab_size=16, bos_token_id=0, eos_token_id=1,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(tmp_path / "base")
    random = np.random.default_rng(0)
    tensors: dict[str, np.ndarray] = {}
    modules = {(layer, "q" if module == 1 else "k"): rank for module, layer, rank in EXAMPLE}
    for (layer, x), rank in modules.items():
        stem = f"base_model.model.model.layers.{layer}.self_attn.{x}_proj.lora_"
        tensors[f"{stem}A.weight"] = random.standard_normal((rank, 4)).astype(np.float32)
        tensors[f"{stem}B.weight"] = random.standard_normal((4, rank)).astype(np.float32)
    names = {f"model.layers.{layer}.self_attn.{x}_proj": rank for (layer, x), rank in modules.items()}
    words = {"peft_type": "LORA", "r": 2, "lora_alpha": ALPHA, "rank_pattern": names, "target_modules": list(names)}
    (tmp_path / "lora").mkdir()
    save_file(tensors, tmp_path / "lora" / "adapter_model.safetensors")
    (tmp_path / "lora" / "adapter_config.json").write_text(json.dumps(words))
    return open_job(checkpoint=str(tmp_path / "base")), tmp_path / "lora", tensors


def rows(tensors: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Each row of the example: the in weights flat, then the out weights, which have the scale."""
    found = []
    for module, layer, rank in EXAMPLE:
        stem = f"base_model.model.model.layers.{layer}.self_attn.{'q' if module == 1 else 'k'}_proj.lora_"
        out = tensors[f"{stem}B.weight"] * np.float32(ALPHA / rank)
        found.append(np.concatenate([tensors[f"{stem}A.weight"].ravel(), out.ravel()]))
    return found


def test_the_example(example):
    job, folder, tensors = example
    weights, config, cross = request_tensors(job, open_lora(folder), "float32")
    assert config.tolist() == EXAMPLE
    assert config.dtype == np.int32
    assert cross == ()
    assert weights.shape == (6, 8 * 4 + 4 * 8)  # the largest: rank 8, 4 wide
    for row, wanted in zip(weights, rows(tensors), strict=True):
        np.testing.assert_array_equal(row[: wanted.size], wanted)
        assert not row[wanted.size :].any()


@pytest.mark.parametrize("parallel", [Parallel(tp=2), Parallel(pp=2), Parallel(tp=2, pp=2)], ids=["tp2", "pp2", "both"])
def test_the_example_on_ranks(example, parallel):
    """The tensors are those of the whole model; a rank takes its stage's rows, and of q and k its rows of B."""
    job, folder, tensors = example
    stages = Stages(job.graph.layer_path, 4)
    loaded = load_lora(job, folder)
    taken: list[tuple[int, int]] = []
    for number in range(parallel.size):
        part = rank_plan(loaded.lora.plan, parallel, number, stages)
        arrays = materialise(part, loaded.files.checkpoint)
        rank = parallel.rank(number)
        for (module, layer, size), row in zip(EXAMPLE, rows(tensors), strict=True):
            stem = f"model.layers.{layer}.self_attn.{'q' if module == 1 else 'k'}_proj.weight.lora_"
            if layer not in parallel.stages(4)[rank.stage]:
                assert f"{stem}A" not in arrays
                continue
            taken.append((module, layer))
            a, b = row[: size * 4].reshape(size, 4), row[size * 4 :].reshape(4, size)
            own = slice(rank.tp * 4 // parallel.tp, (rank.tp + 1) * 4 // parallel.tp)
            np.testing.assert_array_equal(arrays[f"{stem}A"], a)
            np.testing.assert_array_equal(arrays[f"{stem}B"] * np.float32(ALPHA / size), b[own])
    assert sorted(taken) == sorted([(module, layer) for module, layer, _ in EXAMPLE] * parallel.tp)


@pytest.mark.parametrize("form", ["safetensors", "numpy"])
def test_files(example, form, tmp_path):
    job, folder, _ = example
    convert_lora(job, str(folder), tmp_path / "out", dtype="float16", form=form)
    weights, config, _ = request_tensors(job, open_lora(folder), "float16")
    if form == "numpy":
        found = [np.load(tmp_path / "out" / f"model.{name}.npy") for name in ("lora_weights", "lora_config")]
    else:
        tensors = load_file(tmp_path / "out" / "lora.safetensors")
        found = [tensors["lora_weights"], tensors["lora_config"]]
    assert found[0].dtype == np.float16
    np.testing.assert_array_equal(found[0], weights)
    np.testing.assert_array_equal(found[1], config)


CASES = {
    "llama": Case("llama", {"r": 4, "target_modules": "all-linear", "rank_pattern": {"k_proj": 2}}),
    "phi3": Case("phi3", {"r": 4, "lora_alpha": 3, "target_modules": "all-linear"}),
    "gpt_neox": Case("gpt_neox", {"r": 4, "target_modules": "all-linear"}),
    "gpt2": Case("gpt2", {"r": 4, "target_modules": ["c_attn", "c_proj", "c_fc"], "fan_in_fan_out": True}),
    "mixtral": Case("mixtral", {"r": 4, "target_modules": ["o_proj", "w1", "w2", "w3", "gate"]}),
    "qwen2_moe": Case("qwen2_moe", {"r": 4, "target_modules": ["q_proj", "shared_expert.up_proj"]}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_there_and_back(name, tmp_path):
    """What comes back changes every parameter by the same numbers, up to float32's rounding of the scale."""
    written = write(CASES[name], tmp_path)
    job = open_job(checkpoint=str(written.base))
    convert_lora(job, str(written.lora), tmp_path / "trtllm", dtype="float32")
    restore_lora(job, str(tmp_path / "trtllm"), tmp_path / "back")
    first, again = load_lora(job, written.lora), load_lora(job, tmp_path / "back")
    assert again.findings == []
    assert first.lora.sites.keys() <= again.lora.sites.keys()
    of_first, of_again = (each.lora.arrays(each.files.checkpoint) for each in (first, again))
    for site in again.lora.sites:
        change = delta(first.lora.sites[site], of_first) if site in first.lora.sites else 0
        np.testing.assert_allclose(delta(again.lora.sites[site], of_again), change, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["llama", "phi3", "gpt2"])
def test_peft_loads_what_comes_back(name, tmp_path):
    written = write(CASES[name], tmp_path)
    job = open_job(checkpoint=str(written.base))
    convert_lora(job, str(written.lora), tmp_path / "trtllm", dtype="float32")
    restore_lora(job, str(tmp_path / "trtllm"), tmp_path / "back")
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # of GPT-2: that it takes fan_in_fan_out from the layers
        from peft import PeftModel

        model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(written.base), tmp_path / "back")
        logits = model.eval()(torch.tensor([TOKENS])).logits[0].numpy()
    assert np.abs(logits - written.logits).max() <= 1e-5 * np.abs(written.logits).max()


def test_fused_matrices_are_one_row(tmp_path):
    """attn_qkv, number 0: q, k and v of a layer share A, and their rows of B lie one after the other."""
    written = write(CASES["phi3"], tmp_path)
    job = open_job(checkpoint=str(written.base))
    weights, config, _ = request_tensors(job, open_lora(written.lora), "float32")
    assert sorted({module for module, _, _ in config.tolist()}) == [0, 4, 5, 6, 7]
    tensors = load_file(written.lora / "adapter_model.safetensors")
    stem = "base_model.model.model.layers.0.self_attn.qkv_proj.lora_"
    row = weights[config.tolist().index([0, 0, 4])]
    wanted = np.concatenate(
        [tensors[f"{stem}A.weight"].ravel(), (tensors[f"{stem}B.weight"] * np.float32(0.75)).ravel()]
    )
    np.testing.assert_array_equal(row[: wanted.size], wanted)


def test_every_number(tmp_path):
    assert sorted(IDS.values()) == list(range(18))
    parameters = {
        "self_attn.q_proj.weight": 1, "attention.k_proj.weight": 2, "self_attention.v_proj.weight": 3,
        "attn.c_attn.weight": 0, "attn.c_proj.weight": 4, "self_attn.o_proj.weight": 4, "attention.dense.weight": 4,
        "mlp.gate_proj.weight": 5, "mlp.c_fc.weight": 5, "mlp.dense_h_to_4h.weight": 5, "mlp.down_proj.weight": 6,
        "mlp.c_proj.weight": 6, "mlp.up_proj.weight": 7, "mlp.experts.gate_proj": 13, "mlp.experts.down_proj": 14,
        "mlp.experts.up_proj": 15, "mlp.gate.weight": 16, "mlp.router.weight": 16, "mlp.shared_expert_gate.weight": 17,
    }  # fmt: skip
    assert {name: module_id(name) for name in parameters} == parameters
    for none in ("self_attn.q_a_proj.weight", "input_layernorm.weight", "mlp.shared_experts.up_proj.weight"):
        assert module_id(none) is None
    modules = [f"decoder.layers.2.encoder_attn.{x}_proj" for x in ("qkv", "q", "k", "v", "out")]
    assert [cross_attention(module) for module in modules] == [(2, number) for number in range(8, 13)]
    assert cross_attention("model.layers.0.self_attn.q_proj") is None


def test_a_shared_expert(tmp_path):
    """Of Qwen2-MoE, tensorrt_llm/models/qwen/model.py: its matrices are those of an MLP, its gate is number 17."""
    modules = {
        5: "shared_expert.gate_proj",
        6: "shared_expert.down_proj",
        7: "shared_expert.up_proj",
        17: "shared_expert_gate",
    }
    written = write(Case("qwen2_moe", {"r": 4, "lora_alpha": 6.0, "target_modules": list(modules.values())}), tmp_path)
    weights, config, _ = request_tensors(open_job(checkpoint=str(written.base)), open_lora(written.lora), "float32")
    assert config.tolist() == [[number, layer, 4] for layer in (0, 1) for number in modules]
    tensors = load_file(written.lora / "adapter_model.safetensors")
    for row, (number, layer, _) in zip(weights, config.tolist(), strict=True):
        stem = f"base_model.model.model.layers.{layer}.mlp.{modules[number]}.lora_"
        a, b = tensors[f"{stem}A.weight"], tensors[f"{stem}B.weight"] * np.float32(1.5)
        wanted = np.concatenate([a.ravel(), b.ravel()])
        np.testing.assert_array_equal(row[: wanted.size], wanted)
        assert not row[wanted.size :].any()
    assert b.shape == (1, 4)  # of the gate, the last: one output


@pytest.mark.parametrize("form", ["safetensors", "numpy"])
def test_a_request_that_is_taken_for_an_adapter(example, form, tmp_path):
    """The message has the command that converts it."""
    job, folder, _ = example
    convert_lora(job, str(folder), tmp_path / "request", form=form)
    with pytest.raises(BringupError, match="BU160") as caught:
        open_lora(tmp_path / "request")
    assert f"bringup lora convert {tmp_path}/request --to peft" in caught.value.findings[0].help


def test_a_file_that_is_no_adapter(tmp_path):
    file = tmp_path / "notes.txt"
    file.write_text("", "utf-8")
    with pytest.raises(BringupError, match=f"BU160: `{file}` has no adapter_config.json next to it"):
        open_lora(file)


def test_a_base_that_is_no_text(example):
    _, folder, _ = example
    file = folder / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text("utf-8")), "base_model_name_or_path": 7}), "utf-8")
    assert open_lora(folder).base == ""


def test_cross_attention_is_converted_by_name(example):
    job, folder, tensors = example
    random = np.random.default_rng(1)
    stem = "base_model.model.model.layers.1.cross_attn.q_proj.lora_"
    more = {
        f"{stem}{x}.weight": random.standard_normal(shape).astype(np.float32)
        for x, shape in (("A", (2, 6)), ("B", (4, 2)))
    }
    save_file(tensors | more, folder / "adapter_model.safetensors")
    weights, config, cross = request_tensors(job, open_lora(folder), "float32")
    assert cross == ("model.layers.1.cross_attn.q_proj",)
    assert config.tolist() == sorted([*EXAMPLE, [9, 1, 2]], key=lambda row: (row[1], row[0]))
    a, b = more.values()
    wanted = np.concatenate([a.ravel(), (b * np.float32(ALPHA / 2)).ravel()])
    np.testing.assert_array_equal(weights[config.tolist().index([9, 1, 2])][: wanted.size], wanted)


def test_a_module_without_a_number_is_refused(tmp_path):
    written = write(Case("deepseek_v3", {"r": 4, "target_modules": ["q_a_proj"]}), tmp_path)
    job = open_job(checkpoint=str(written.base))
    with pytest.raises(BringupError, match="BU170"):
        request_tensors(job, open_lora(written.lora), "float32")


@pytest.mark.parametrize("wrong", [[17, 0, 2], [1, 4, 2], [1, 0, 60], [1, 0, 0]])
def test_tensors_of_another_model_are_refused(example, wrong, tmp_path):
    job, folder, _ = example
    weights, config, _ = request_tensors(job, open_lora(folder), "float32")
    config[0] = wrong
    (tmp_path / "other").mkdir()
    save_file({"lora_weights": weights, "lora_config": config}, tmp_path / "other" / "lora.safetensors")
    with pytest.raises(BringupError, match="BU173"):
        restore_lora(job, str(tmp_path / "other"), tmp_path / "back")
