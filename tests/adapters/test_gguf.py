"""The GGUF reader. gguf-py writes the files and is the oracle for what is in them."""

from __future__ import annotations

import math
import time
from pathlib import Path

import gguf
import numpy as np
import pytest

from bringup.adapters.checkpoints.gguf import metadata
from bringup.adapters.checkpoints.gguf_tensors import TYPES, UNREAD
from bringup.adapters.sources.open_checkpoint import open_checkpoint
from bringup.spec import DTYPES
from tests.adapters.gguf_files import hyperparameters, write

RNG = np.random.default_rng(0)
Kind = gguf.GGMLQuantizationType


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
    begin = time.process_time()
    checkpoint = open_checkpoint(str(file))
    assert time.process_time() - begin < 0.5
    assert checkpoint.config["vocab_size"] == len(texts)
    assert checkpoint.tokenizer == file
    assert metadata(file)["tokenizer.ggml.tokens"] == texts
