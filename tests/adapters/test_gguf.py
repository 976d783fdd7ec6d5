"""The GGUF reader. gguf-py writes the files and is the oracle for what is in them."""

from __future__ import annotations

import math
import re
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from bringup.adapters.readers.gguf import metadata
from bringup.adapters.readers.gguf_config import config_from_metadata
from bringup.adapters.readers.gguf_tensors import TYPES, UNREAD, read_gguf
from bringup.adapters.readers.open import open_checkpoint
from bringup.diagnostics import BringupError
from bringup.graphs.llama import LlamaConfig
from bringup.spec import DTYPES

RNG = np.random.default_rng(0)
Kind = gguf.GGMLQuantizationType


def raises(code: str, match: str = "") -> Any:
    def looks(error: BringupError) -> bool:
        (finding,) = error.findings
        return finding.code == code and bool(finding.help) and bool(re.search(match, finding.message + finding.help))

    return pytest.raises(BringupError, check=looks)


def write(path: Path, fill: Callable[[gguf.GGUFWriter], None]) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    fill(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def hyperparameters(writer: gguf.GGUFWriter) -> None:
    writer.add_context_length(2048)
    writer.add_embedding_length(64)
    writer.add_block_count(2)
    writer.add_feed_forward_length(96)
    writer.add_head_count(4)
    writer.add_layer_norm_rms_eps(1e-5)


def test_the_block_layouts_are_those_of_gguf_py() -> None:
    for number, name in TYPES.items():
        sizes = gguf.GGML_QUANT_SIZES[Kind(number)]
        assert DTYPES[name].block in (sizes, None)
        assert DTYPES[name].nbytes((3, 256)) == 3 * 256 // sizes[0] * sizes[1]
    assert {int(kind): kind.name for kind in Kind if int(kind) not in TYPES} == UNREAD


def test_every_tensor_as_gguf_py_reads_it(tmp_path: Path) -> None:
    plain = [np.float32, np.float16, np.float64, np.int8, np.int16, np.int32, np.int64]
    blocks = [Kind.Q8_0, Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1]
    values = RNG.standard_normal((3, 5, 64)).astype(np.float32)

    def fill(writer: gguf.GGUFWriter) -> None:
        for dtype in plain:
            writer.add_tensor(np.dtype(dtype).name, (values * 9).astype(dtype))
        for kind in (*blocks, Kind.BF16):
            writer.add_tensor(kind.name, gguf.quantize(values, kind), raw_dtype=kind)
        writer.add_tensor("vector", values[0, 0, :7])

    checkpoint = open_checkpoint(str(write(tmp_path / "m.gguf", lambda w: (hyperparameters(w), fill(w)))))
    truth = {tensor.name: tensor for tensor in gguf.GGUFReader(tmp_path / "m.gguf").tensors}
    assert checkpoint.headers.keys() == truth.keys()
    for name, info in checkpoint.headers.items():
        tensor, array = truth[name], checkpoint.read(info)
        assert info.dtype.upper() in (tensor.tensor_type.name, name.upper(), "BFLOAT16", "FLOAT32")
        assert info.shape == tuple(int(size) for size in reversed(tensor.shape))
        assert (info.offset, info.nbytes) == (tensor.data_offset, tensor.n_bytes)
        assert array.tobytes() == tensor.data.tobytes()
        assert array.flags.writeable
        if DTYPES[info.dtype].block:
            again = gguf.dequantize(array, tensor.tensor_type).reshape(info.shape)
            assert np.array_equal(again, gguf.dequantize(tensor.data, tensor.tensor_type))
        else:
            assert array.shape == info.shape
    assert np.abs(checkpoint.read(checkpoint.headers["BF16"]).astype(np.float32) - values).max() < 0.02


def test_metadata_as_gguf_py_reads_it(tmp_path: Path) -> None:
    def fill(writer: gguf.GGUFWriter) -> None:
        hyperparameters(writer)
        for name in ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"):
            getattr(writer, f"add_{name}")(f"x.{name}", 100)
        writer.add_float64("x.float64", math.pi)
        writer.add_bool("x.bool", True)
        writer.add_string("x.text", "naïve ☕")
        writer.add_array("x.numbers", [3, -1, 2])
        writer.add_array("x.truths", [True, False])
        writer.add_array("x.texts", ["a", "", "ß"])

    meta = metadata(write(tmp_path / "m.gguf", fill))
    truth = gguf.GGUFReader(tmp_path / "m.gguf").fields
    assert set(meta) == {key for key in truth if not key.startswith("GGUF.")}
    assert {key: meta[key] for key in meta} == {key: truth[key].contents() for key in meta}
    assert type(meta["x.bool"]) is bool
    assert (meta.count("x.texts"), meta.count("x.text"), "x.texts" in meta) == (3, None, True)


@pytest.mark.parametrize("alignment", [8, 64, 4096])
def test_alignment_is_honoured(tmp_path: Path, alignment: int) -> None:
    def fill(writer: gguf.GGUFWriter) -> None:
        hyperparameters(writer)
        writer.add_custom_alignment(alignment)
        writer.add_tensor("a", np.arange(3, dtype=np.float32))
        writer.add_tensor("b", np.arange(5, dtype=np.float32))

    checkpoint = open_checkpoint(str(write(tmp_path / "m.gguf", fill)))
    assert all(info.offset % alignment == 0 for info in checkpoint.headers.values())
    assert checkpoint.read(checkpoint.headers["b"]).tolist() == [0, 1, 2, 3, 4]


def test_a_large_vocabulary_is_stepped_over_quickly(tmp_path: Path) -> None:
    """300,000 strings, as Llama 3 has them; generous against the 40 ms it takes here."""
    texts = [f"token {number}" for number in range(300_000)]

    def fill(writer: gguf.GGUFWriter) -> None:
        hyperparameters(writer)
        writer.add_array("tokenizer.ggml.tokens", texts)

    file = write(tmp_path / "m.gguf", fill)
    begin = time.perf_counter()
    checkpoint = open_checkpoint(str(file))
    assert time.perf_counter() - begin < 0.5
    assert checkpoint.config["vocab_size"] == len(texts)
    assert checkpoint.tokenizer == file
    assert metadata(file)["tokenizer.ggml.tokens"] == texts


# --- config


def config_of(tmp_path: Path, fill: Callable[[gguf.GGUFWriter], None]) -> dict[str, Any]:
    def both(writer: gguf.GGUFWriter) -> None:
        hyperparameters(writer)
        fill(writer)

    return config_from_metadata(*read_gguf(write(tmp_path / "m.gguf", both)))


def test_a_config_that_the_graph_accepts(tmp_path: Path) -> None:
    def fill(writer: gguf.GGUFWriter) -> None:
        writer.add_head_count_kv(2)
        writer.add_rope_dimension_count(16)
        writer.add_rope_freq_base(100000.0)
        writer.add_vocab_size(300)
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        writer.add_pad_token_id(0)
        writer.add_tensor("token_embd.weight", np.zeros((300, 64), np.float32))

    config = config_of(tmp_path, fill)
    assert config == {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-5,
        "rope_theta": 100000.0,
        "max_position_embeddings": 2048,
        "vocab_size": 300,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
    made = LlamaConfig.from_hf(config)
    assert (made.tied_head, made.head_dim, made.rope.theta) == (True, 16, 100000.0)


def test_an_output_matrix_and_biases_are_seen(tmp_path: Path) -> None:
    def fill(writer: gguf.GGUFWriter) -> None:
        writer.add_key_length(32)
        writer.add_value_length(32)
        writer.add_rope_dimension_count(32)
        for name in ("token_embd.weight", "output.weight", "blk.0.attn_q.bias"):
            writer.add_tensor(name, np.zeros((10, 64), np.float32))

    config = config_of(tmp_path, fill)
    assert config["tie_word_embeddings"] is False
    assert (config["attention_bias"], config["mlp_bias"]) == (True, False)
    assert (config["head_dim"], config["vocab_size"], config["rope_theta"]) == (32, 10, 10000.0)
    assert not any(key.startswith("llama.") for key in config)


def test_what_config_json_has_no_word_for_is_not_lost(tmp_path: Path) -> None:
    def fill(writer: gguf.GGUFWriter) -> None:
        writer.add_vocab_size(10)
        writer.add_rope_dimension_count(8)  # of 16: a partial rotation
        writer.add_logit_scale(0.5)

    config = config_of(tmp_path, fill)
    assert config["llama.rope.dimension_count"] == 8
    assert config["llama.logit_scale"] == 0.5
    with pytest.raises(BringupError) as caught:
        LlamaConfig.from_hf(config)
    assert {finding.parameter for finding in caught.value.findings} >= {"llama.logit_scale"}


def test_rope_scaling(tmp_path: Path) -> None:
    def linear(writer: gguf.GGUFWriter) -> None:
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(4.0)

    def yarn(writer: gguf.GGUFWriter) -> None:
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(8.0)
        writer.add_rope_scaling_orig_ctx_len(4096)
        writer.add_rope_scaling_finetuned(True)

    assert config_of(tmp_path, linear)["rope_scaling"] == {"rope_type": "linear", "factor": 4.0}
    assert config_of(tmp_path, yarn)["rope_scaling"] == {
        "rope_type": "yarn",
        "factor": 8.0,
        "original_max_position_embeddings": 4096,
    }
    none = config_of(tmp_path, lambda w: w.add_rope_scaling_type(gguf.RopeScalingType.NONE))
    assert "rope_scaling" not in none


def llama3_factors(theta: float, dim: int, factor: float) -> np.ndarray:
    """Frequencies without scaling over frequencies with, both by transformers."""
    import transformers
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    parameters = {"rope_theta": theta, "rope_type": "llama3", "factor": factor, "low_freq_factor": 1.0}
    parameters |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    config = transformers.LlamaConfig(
        hidden_size=dim, num_attention_heads=1, max_position_embeddings=131072, rope_parameters=parameters
    )
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
    return (theta ** (-np.arange(0, dim, 2) / dim) / scaled.numpy()).astype(np.float32)


@pytest.mark.parametrize(("dim", "factor"), [(128, 8.0), (64, 32.0)])
def test_llama3_scaling_is_recognised_in_its_tensor(tmp_path: Path, dim: int, factor: float) -> None:
    factors = llama3_factors(500000.0, dim, factor)

    def fill(writer: gguf.GGUFWriter) -> None:
        writer.add_rope_freq_base(500000.0)
        writer.add_tensor("rope_freqs.weight", factors)

    assert config_of(tmp_path, fill)["rope_scaling"] == {
        "rope_type": "llama3",
        "factor": pytest.approx(factor, rel=1e-5),
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    factors[dim // 4] *= 1.01
    config = config_of(tmp_path, fill)
    assert config["rope_scaling"]["rope_type"] not in ("llama3", "default")


def test_mixtral_is_a_llama_with_experts(tmp_path: Path) -> None:
    def fill(writer: gguf.GGUFWriter) -> None:
        writer.add_expert_count(8)
        writer.add_expert_used_count(2)

    config = config_of(tmp_path, fill)
    assert config["architectures"] == ["MixtralForCausalLM"]
    assert (config["num_local_experts"], config["num_experts_per_tok"]) == (8, 2)


def test_other_architectures_say_what_they_are(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "gemma3")
    writer.add_embedding_length(64)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    config = open_checkpoint(str(tmp_path / "m.gguf")).config
    assert config == {"architectures": ["gemma3 (GGUF)"], "embedding_length": 64}


def test_a_missing_hyperparameter(tmp_path: Path) -> None:
    def fill(writer: gguf.GGUFWriter) -> None:
        writer.add_embedding_length(64)
        writer.add_array("llama.attention.head_count", [4, 4])

    file = write(tmp_path / "m.gguf", fill)
    with raises("BU224", "`llama.feed_forward_length`, `llama.block_count`, `llama.attention.head_count`"):
        open_checkpoint(str(file))


# --- hostile files


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def pair(key: str, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def tensor(name: str, shape: tuple[int, ...] = (2,), kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


def file_of(*infos: bytes, keys: tuple[bytes, ...] = (), data: bytes = b"\0" * 64, version: int = 3) -> bytes:
    head = b"GGUF" + struct.pack("<IQQ", version, len(infos), len(keys)) + b"".join(keys) + b"".join(infos)
    return head + b"\0" * (-len(head) % 32) + data


HOSTILE: dict[str, tuple[str, bytes]] = {
    "version 1": ("BU223", file_of(version=1)),
    "big endian": ("BU223", b"GGUF" + struct.pack(">IQQ", 3, 0, 0)),
    "split": ("BU223", file_of(keys=(pair("split.count", 2, struct.pack("<H", 4)),))),
    "type not read": ("BU223", file_of(tensor("a", (256,), kind=16))),
    "header cut": ("BU208", file_of()[:20]),
    "too many tensors": ("BU208", b"GGUF" + struct.pack("<IQQ", 3, 2**60, 0)),
    "too many keys": ("BU208", b"GGUF" + struct.pack("<IQQ", 3, 0, 2**60)),
    "long key": ("BU208", file_of(keys=(struct.pack("<Q", 2**62),))),
    "long string": ("BU208", file_of(keys=(pair("x", 8, struct.pack("<Q", 2**63)),))),
    "long array": ("BU208", file_of(keys=(pair("x", 9, struct.pack("<IQ", 4, 2**62)),))),
    "long string array": ("BU208", file_of(keys=(pair("x", 9, struct.pack("<IQ", 8, 2**62)),))),
    "long string in an array": ("BU208", file_of(keys=(pair("x", 9, struct.pack("<IQQ", 8, 2, 2**63)),))),
    "nested array": ("BU221", file_of(keys=(pair("x", 9, struct.pack("<IQ", 9, 1)),))),
    "no such value type": ("BU221", file_of(keys=(pair("x", 13, b""),))),
    "a key twice": ("BU221", file_of(keys=(pair("x", 0, b"1"),) * 2)),
    "key not utf-8": ("BU221", file_of(keys=(struct.pack("<Q", 1) + b"\xff",))),
    "alignment 0": ("BU221", file_of(keys=(pair("general.alignment", 4, struct.pack("<I", 0)),))),
    "alignment 24": ("BU221", file_of(keys=(pair("general.alignment", 4, struct.pack("<I", 24)),))),
    "a tensor twice": ("BU222", file_of(tensor("a"), tensor("a", offset=32))),
    "five dimensions": ("BU222", file_of(tensor("a", (1,) * 5))),
    "no such tensor type": ("BU222", file_of(tensor("a", kind=77))),
    "removed tensor type": ("BU222", file_of(tensor("a", kind=4))),
    "half a block": ("BU222", file_of(tensor("a", (48,), kind=8))),
    "odd offset": ("BU222", file_of(tensor("a", offset=4))),
    "overlap": ("BU222", file_of(tensor("a", (9,)), tensor("b", offset=32))),
    "data cut": ("BU208", file_of(tensor("a", (1000,)))),
    "enormous shape": ("BU208", file_of(tensor("a", (2**62, 2**62)))),
    "offset outside": ("BU208", file_of(tensor("a", offset=2**63))),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files(tmp_path: Path, name: str) -> None:
    code, content = HOSTILE[name]
    file = tmp_path / "m.gguf"
    file.write_bytes(content)
    with raises(code, re.escape(str(file))):
        read_gguf(file)


def test_hostile_files_are_valid_but_for_their_fault(tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    file.write_bytes(file_of(tensor("a"), tensor("b", offset=32), keys=(pair("x", 0, b"1"),)))
    assert [info.shape for info in read_gguf(file)[1].values()] == [(2,), (2,)]
    assert len(gguf.GGUFReader(file).tensors) == 2


@pytest.mark.parametrize("size", range(0, 300, 7))
def test_a_file_cut_anywhere(tmp_path: Path, size: int) -> None:
    def fill(writer: gguf.GGUFWriter) -> None:
        hyperparameters(writer)
        writer.add_array("x.texts", ["a", "b"])
        writer.add_tensor("a", np.zeros(64, np.float32))

    file = write(tmp_path / "m.gguf", fill)
    file.write_bytes(file.read_bytes()[:size])
    with raises("BU221" if size < 4 else "BU208"):
        read_gguf(file)


def test_not_a_gguf_file(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGML" + b"\0" * 50)
    with raises("BU221"):
        read_gguf(tmp_path / "m.gguf")
    (tmp_path / "n.gguf").write_bytes(b"")
    with raises("BU218", "m.gguf"):
        open_checkpoint(str(tmp_path))
