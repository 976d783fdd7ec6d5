"""Families in GGUF whose converter changes more than names: the logits of the transformers models that they were."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from bringup.adapters.apply.materialise import materialise
from bringup.adapters.dialects.dialect import rotary_fraction
from bringup.adapters.sources.open_checkpoint import open_checkpoint
from bringup.compile.check.checker import check_job
from bringup.compile.job import open_job
from bringup.compile.parity.reference import Reference
from bringup.diagnostics import BringupError
from tests.adapters import gguf_families, gguf_keys, llama_cpp, test_dialects
from tests.adapters.gguf_families import CASES
from tests.adapters.gguf_files import hyperparameters
from tests.models import parity

MODELS = {
    "exaone": "exaone",
    "internlm2": "llama",
    "mistral-small": "llama",
    "qwen": "qwen",
}  # of those written from others' checkpoints


@pytest.mark.parametrize("name", CASES)
def test_the_logits_of_transformers(name: str, tmp_path: Path) -> None:
    job = llama_cpp.assert_same_logits(*gguf_families.write(CASES[name], tmp_path))
    assert job.family.name.replace("_", "-") in name or job.family.name == MODELS[name]


# As in test_dialects: the logits above show the config and the tensors of each; one with experts is compiled.
@pytest.mark.parametrize("name", [pytest.param("gpt-oss", marks=pytest.mark.slow)])
def test_the_tokens_of_transformers(name: str, tmp_path: Path) -> None:
    folder, file = gguf_families.write(CASES[name], tmp_path)
    llama_cpp.assert_same_tokens(open_job(None, str(file)), folder, tmp_path / "bundle", target="torch")


@pytest.mark.parametrize(
    ("name", "attention", "module"), [("granitemoehybrid", 1, "self_attn"), ("nemotron-h", 2, "mixer")]
)
def test_rows_of_queries_are_in_halves_again(name: str, attention: int, module: str, tmp_path: Path) -> None:
    """Without rope, the logits do not depend on the order of a head's channels."""
    folder, file = gguf_families.write(CASES[name], tmp_path)
    found, wanted = (open_job(None, str(path)) for path in (file, folder))
    ours, theirs = (materialise(job.plan, job.checkpoint) for job in (found, wanted))
    for x in "qkv":
        parameter = f"model.layers.{attention}.{module}.{x}_proj.weight"
        assert np.array_equal(ours[parameter], theirs[parameter])
    assert np.allclose(ours["model.layers.0.mixer.A_log"], theirs["model.layers.0.mixer.A_log"], rtol=1e-6)


def test_a_file_with_rope_is_not_granite_s(tmp_path: Path) -> None:
    """llama.cpp uses rope if the key is absent; its converter writes true for Bamba, and permutes all of q and k."""
    _, file = gguf_families.write(CASES["granitemoehybrid"], tmp_path, words=gguf_keys.bamba)
    with pytest.raises(BringupError, match=r"BU227.*`granitemoehybrid` does not support"):
        open_job(None, str(file))


@pytest.mark.parametrize("name", ["gpt2", "bloom", "gpt-neox"])
def test_every_family_reads_the_size_of_its_vocabulary(name: str, tmp_path: Path) -> None:
    """`ARCH.vocab_size`, which files without a tokenizer have."""
    case = CASES[name]

    def words(writer: gguf.GGUFWriter, config: llama_cpp.Config) -> None:
        case.words(writer, config)
        writer.add_vocab_size(config["vocab_size"])

    saved, file = gguf_families.write(case, tmp_path, words=words)
    job = open_job(None, str(file))
    assert check_job(job).findings == []
    assert job.config["vocab_size"] == AutoConfig.from_pretrained(saved).vocab_size


def test_experts_in_mxfp4(tmp_path: Path) -> None:
    """The published weights of gpt-oss: blocks of 32 values and a scale, read as gguf-py reads them."""
    kind = gguf.GGMLQuantizationType.MXFP4
    _, file = gguf_families.write(CASES["gpt-oss"], tmp_path, kind=kind)
    job = open_job(None, str(file))
    assert check_job(job).findings == []
    found = materialise(job.plan, job.checkpoint)
    read = {tensor.name: tensor for tensor in gguf.GGUFReader(file).tensors}
    for x in ("gate", "up", "down"):
        stored = read[f"blk.1.ffn_{x}_exps.weight"]
        assert stored.tensor_type == kind
        wanted = gguf.dequantize(stored.data, kind)
        array = found[f"model.layers.1.mlp.experts.{x}_proj"]
        assert np.array_equal(array, wanted.reshape(array.shape))


@pytest.mark.parametrize(
    ("name", "layers", "hidden"),
    [("glm4-moe", 2, 30), ("mimo-v2-flash", 3, 30), ("qwen3-5", 3, 36), ("nemotron-h-moe", 3, 36)],
)
def test_the_layer_of_a_draft_is_dropped(name: str, layers: int, hidden: int, tmp_path: Path) -> None:
    """`block_count` counts the draft's layer, which comes last."""
    case = CASES[name]

    def words(writer: gguf.GGUFWriter, config: llama_cpp.Config) -> None:
        case.words(writer, config)
        for key, value in (("block_count", layers + 1), ("nextn_predict_layers", 1)):
            gguf_keys.set_key(writer, key, value)
        for tensor in ("nextn.eh_proj.weight", "nextn.enorm.weight", "attn_norm.weight"):
            shape = (hidden, 2 * hidden) if "proj" in tensor else hidden
            writer.add_tensor(f"blk.{layers}.{tensor}", np.ones(shape, np.float32))

    folder, file = gguf_families.write(case, tmp_path, words=words)
    job = llama_cpp.assert_same_logits(folder, file)
    dropped = {f"blk.{layers}.{x}.weight" for x in ("attn_norm", "nextn.eh_proj", "nextn.enorm")}
    assert job.plan.dropped.keys() == dropped


@pytest.mark.parametrize(
    ("heads", "found"),
    [(2, [True] * 3), ([0, 0, 2], [False, False, True]), ([0] * 3, [False] * 3), ([6, 0, 2], None), ([2, 0], None)],
)
def test_layers_of_lfm2_without_key_heads_have_a_convolution(
    heads: int | list[int], found: list[bool] | None, tmp_path: Path
) -> None:
    def words(writer: gguf.GGUFWriter, config: llama_cpp.Config) -> None:
        gguf_keys.set_key(writer, "attention.head_count_kv", heads)

    _, file = gguf_families.write(CASES["lfm2"], tmp_path, words=words)
    job = open_job(None, str(file))
    if found is None:
        assert [(each.code, each.config_key.rpartition(".")[2]) for each in job.findings] == [
            ("BU121", "num_key_value_heads") if len(heads) == 3 else ("BU122", "layer_types")
        ]
    else:
        assert list(job.graph.config.with_attention) == found


@pytest.mark.parametrize(
    ("changes", "codes", "key"),
    [
        ({"attention.key_length_swa": None}, {"BU121"}, "head_dim"),
        ({"attention.value_length_swa": 6}, {"BU120"}, "gemma4.attention.value_length_swa"),
        ({"attention.sliding_window": None}, {"BU121"}, "sliding_window"),
        ({"attention.sliding_window_pattern": None}, {"BU122"}, "layer_types"),
        ({"attention.sliding_window_pattern": [1, 0]}, {"BU122"}, "layer_types"),
        ({"attention.head_count_kv": [2, 1, 2]}, {"BU121"}, "num_key_value_heads"),
        ({"attention.head_count_kv": [2, 1]}, {"BU121"}, "num_key_value_heads"),
        ({"embedding_length_per_layer_input": None}, {"BU121"}, "hidden_size_per_layer_input"),
        ({"feed_forward_length": None}, {"BU121"}, "intermediate_size"),
        ({"feed_forward_length": [66, 66, 132]}, {"BU121"}, "intermediate_size"),
        ({"attention.key_length": 22}, {"BU122"}, "rope_type"),
        ({"rope.scaling.factor": 2}, {"BU120"}, "gemma4.rope.scaling.factor"),
        ({"attention.shared_kv_layers": 3}, {"BU122"}, "num_kv_shared_layers"),
        ({"block_count": 2**32 - 1}, {"BU124"}, "num_hidden_layers"),
    ],
)
def test_keys_that_gemma4_needs(changes: dict[str, Any], codes: set[str], key: str, tmp_path: Path) -> None:
    """Those that llama.cpp requires are errors if they are absent, and the others if they do not describe the model."""
    assert _codes(CASES["gemma4-values-of-keys"], changes, key, tmp_path) == codes


@pytest.mark.parametrize(
    ("changes", "codes", "key"),
    [
        ({"attention.sliding_window": None}, set(), ""),  # transformers' own
        ({"attention.sliding_window_pattern": None}, {"BU122"}, "layer_types"),
        ({"attention.sliding_window_pattern": [0, 1]}, {"BU122"}, "layer_types"),
        ({"attention.sliding_window_pattern": [1, 1, 1]}, {"BU121"}, "num_key_value_heads"),
        ({"attention.head_count_kv": [1, 2]}, {"BU121"}, "num_key_value_heads"),
        ({"attention.head_count_kv": [1, 2, 4]}, {"BU122"}, "swa_num_key_value_heads"),
        ({"attention.head_count_kv": 1}, {"BU122"}, "swa_num_key_value_heads"),
        ({"block_count": 2**32 - 1}, {"BU124"}, "num_hidden_layers"),
    ],
)
def test_keys_that_mimo_needs(changes: dict[str, Any], codes: set[str], key: str, tmp_path: Path) -> None:
    assert _codes(CASES["mimo-v2-flash"], changes, key, tmp_path) == codes


def _codes(case: gguf_families.Case, changes: dict[str, Any], key: str, tmp_path: Path) -> set[str]:
    """The codes of the findings on a key of the config of a file with other hyperparameters; None removes one."""

    def words(writer: gguf.GGUFWriter, config: llama_cpp.Config) -> None:
        case.words(writer, config)
        for name, value in changes.items():
            if value is None:
                writer.kv_data[0].pop(f"{writer.arch}.{name}")
            else:
                gguf_keys.set_key(writer, name, value)

    _, file = gguf_families.write(case, tmp_path, words=words)
    found = open_job(None, str(file)).findings
    return {each.code for each in found if each.parameter == key}


def test_transformers_has_no_reference_for_a_value_of_each_layer(tmp_path: Path) -> None:
    """Its reader of GGUF expects one number of key heads: an error of `verify`."""
    _, file = gguf_families.write(CASES["gemma4-values-of-keys"], tmp_path)
    checkpoint = open_checkpoint(str(file))
    with pytest.raises(BringupError, match=r"BU703.*`?num_key_value_heads.* expected int, got list"):
        Reference(checkpoint, checkpoint.config, "float32")


@pytest.mark.parametrize("last", [1e15, np.nan])
def test_gemma4_needs_the_divisors_of_rope(last: float, tmp_path: Path) -> None:
    """Others than those that llama.cpp's converter writes."""
    case = CASES["gemma4-values-of-keys"]

    def tensors(found: llama_cpp.Tensors, config: llama_cpp.Config) -> llama_cpp.Tensors:
        found = case.tensors(found, config)
        divisors = found["rope_freqs.weight"]
        return found | {"rope_freqs.weight": np.where(divisors == 1, divisors, np.float32(last))}

    _, file = gguf_families.write(case, tmp_path, tensors=tensors)
    assert {each.code for each in open_job(None, str(file)).findings} == {"BU122"}


@pytest.mark.parametrize("name", ["lfm2", "granitemoehybrid-of-experts-without-mamba"])
def test_too_many_layers_with_one_number_of_key_heads(name: str, tmp_path: Path) -> None:
    """The kinds of all layers follow from that number."""

    def words(writer: gguf.GGUFWriter, config: llama_cpp.Config) -> None:
        CASES[name].words(writer, config)
        gguf_keys.set_key(writer, "attention.head_count_kv", 2)
        gguf_keys.set_key(writer, "block_count", 2**32 - 1)

    _, file = gguf_families.write(CASES[name], tmp_path, words=words)
    assert [(each.code, each.parameter) for each in open_job(None, str(file)).findings] == [
        ("BU124", "num_hidden_layers")
    ]


def test_nemotron_h_needs_the_number_of_selected_experts(tmp_path: Path) -> None:
    def words(writer: gguf.GGUFWriter, config: llama_cpp.Config) -> None:
        writer.kv_data[0].pop(f"{writer.arch}.expert_used_count")

    _, file = gguf_families.write(CASES["nemotron-h-moe"], tmp_path, words=words)
    assert [(each.code, each.parameter) for each in open_job(None, str(file)).findings] == [
        ("BU121", "num_experts_per_tok")
    ]


def test_what_a_deepseek_file_leaves_out_is_llama_cpp_s(tmp_path: Path) -> None:
    """Not what transformers' V3 has for absent keys: 8 groups, weights that add up to 1, a factor of 2.5."""
    file = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(file, "deepseek2")
    hyperparameters(writer)
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    writer.add_expert_count(8)
    writer.add_expert_used_count(2)
    writer.add_expert_shared_count(1)
    writer.add_expert_feed_forward_length(16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    config = open_checkpoint(str(file)).config
    words = ("n_group", "topk_group", "norm_topk_prob", "routed_scaling_factor", "first_k_dense_replace", "q_lora_rank")
    assert [config[word] for word in words] == [1, 1, False, 1.0, 0, None]


@pytest.mark.parametrize(("count", "width"), [(4, 16), (1, 49), (7, 10), (29, 58), (33, 49), (6, 22), (1, 3)])
def test_the_part_that_turns_gives_the_count_again(count: int, width: int) -> None:
    assert int(width * rotary_fraction({"rope.dimension_count": count}, width)) == count


# Of those that transformers 5.23 reads; not Mixtral, whose name it does not find, nor gpt-oss, whose experts' biases.
READ = ["gpt2", "bloom", "lfm2", *(name for name in test_dialects.CASES if not name.startswith(("olmo2", "mixtral")))]


@pytest.mark.parametrize("name", READ)
def test_transformers_reads_the_same_weights(name: str, tmp_path: Path) -> None:
    """The files are llama.cpp's to another reader as well: what these tests write is not only what bringup expects."""
    if name in CASES:
        folder, file = gguf_families.write(CASES[name], tmp_path)
    else:
        folder, file = test_dialects.gguf_of(name, tmp_path)
    config = AutoConfig.from_pretrained(folder)  # of a file without a tokenizer, transformers takes no number of tokens
    model = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=file.name, config=config, dtype=torch.float32)
    found, wanted = model.state_dict(), parity.load_reference(folder).state_dict()
    assert found.keys() == wanted.keys()
    for parameter, values in wanted.items():
        rounded = 2**-23 if name.startswith("gemma") and "norm" in parameter else 0  # the files have 1 + weight
        assert (found[parameter] - values).abs().max() <= rounded, parameter
