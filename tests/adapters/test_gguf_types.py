"""Every GGUF type: the numbers are the gguf package's to the bit, and those of a second reader."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
import transformers
from transformers.integrations.gguf import dequant

import bringup
from bringup.adapters.algebra.computed import AT_A_TIME, block_bytes, dequantised
from bringup.adapters.checkpoints.gguf_tensors import TYPES, UNREAD
from bringup.compile.job import open_job
from bringup.compile.runtime.session import load
from bringup.graphs.core.axes import Axis
from bringup.spec import DTYPES, TensorInfo
from tests.adapters.blocks import MEANING, Kind, random_blocks
from tests.adapters.gguf_files import file_of, tensor
from tests.adapters.written import raises

BLOCKS = {Kind(number): name for number, name in TYPES.items() if DTYPES[name].block}
IDS = [kind.name for kind in BLOCKS]


def ours(kind: Kind, data: np.ndarray) -> np.ndarray:
    """What a plan computes of a tensor's bytes: float32 [elements]."""
    name = BLOCKS[kind]
    width, nbytes = DTYPES[name].block or (1, 1)
    elements = data.size // nbytes * width
    raw = block_bytes(0, TensorInfo("w", name, (elements,)))
    return dequantised(raw, (Axis("n", elements),), name).run(data.reshape(-1)).reshape(-1)


def bits(array: np.ndarray) -> list[int]:
    assert array.dtype == np.float32
    return array.reshape(-1).view(np.uint32).tolist()


def test_the_package_can_dequantise_all_that_is_read_and_nothing_else() -> None:
    assert {Kind(number) for number in UNREAD} | BLOCKS.keys() | {Kind.F32, Kind.F16, Kind.BF16, Kind.F64} >= set(
        gguf.GGML_QUANT_SIZES
    ) - {Kind.I8, Kind.I16, Kind.I32, Kind.I64}
    for number in UNREAD:
        with pytest.raises(NotImplementedError):
            gguf.dequantize(np.zeros(gguf.GGML_QUANT_SIZES[Kind(number)][1], np.uint8), Kind(number))


@pytest.mark.parametrize("kind", BLOCKS, ids=IDS)
@pytest.mark.filterwarnings("ignore:(overflow|invalid value):RuntimeWarning")
def test_any_bytes_give_what_the_package_gives(kind: Kind) -> None:
    """Infinite scales too; more elements than are computed at once, and a last piece that is shorter."""
    width, nbytes = gguf.GGML_QUANT_SIZES[kind]
    count = AT_A_TIME // width * 2 + 3
    data = np.random.default_rng(kind).integers(0, 256, count * nbytes, np.uint8)
    assert bits(ours(kind, data)) == bits(gguf.dequantize(data, kind))


@pytest.mark.parametrize("kind", BLOCKS, ids=IDS)
def test_a_second_reader_agrees(kind: Kind) -> None:
    blocks = random_blocks(kind, 40, np.random.default_rng(kind))
    if kind.name in MEANING:
        truth = np.array([MEANING[kind.name](block.tobytes()) for block in blocks])
    else:
        truth = dequant.dequantize(torch.from_numpy(blocks.reshape(1, -1)), int(kind)).double().numpy()
    values = ours(kind, blocks)
    assert np.abs(values).max() > 0
    np.testing.assert_allclose(values, truth.reshape(-1), rtol=1e-6, atol=1e-9)


def test_little_more_memory_than_the_result() -> None:
    """The package itself takes several times the result at once."""
    data = random_blocks(Kind.IQ2_S, (8 << 20) // 256, np.random.default_rng(0)).reshape(-1)
    ours(Kind.IQ2_S, data[:820])  # its tables
    tracemalloc.start()
    values = ours(Kind.IQ2_S, data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert values.nbytes == 32 << 20
    assert peak < values.nbytes + (16 << 20)


@pytest.mark.parametrize("number", UNREAD)
def test_types_that_nothing_reads_are_refused_from_the_header(tmp_path: Path, number: int) -> None:
    file = tmp_path / "m.gguf"
    file.write_bytes(file_of(tensor("a", (256,), kind=number), data=bytes(1024)))
    with raises("BU223", f"`a` in type {UNREAD[number]}"):
        open_job(checkpoint=str(file))


# --- a model whose matrices are all of different types


HIDDEN, FEED, KV, VOCAB = 256, 512, 128, 320
MATRICES = {
    "attn_q": (HIDDEN, HIDDEN), "attn_k": (KV, HIDDEN), "attn_v": (KV, HIDDEN), "attn_output": (HIDDEN, HIDDEN),
    "ffn_gate": (FEED, HIDDEN), "ffn_up": (FEED, HIDDEN), "ffn_down": (HIDDEN, FEED),
}  # fmt: skip
MIXED = [kind for kind in BLOCKS if kind is not Kind.NVFP4] + [Kind.BF16]  # transformers does not read NVFP4


def stored(kind: Kind, shape: tuple[int, int], random: np.random.Generator) -> np.ndarray:
    """Rows in blocks: quantised normal numbers where the package quantises, random ones of that size elsewhere."""
    try:
        return gguf.quantize(random.standard_normal(shape).astype(np.float32) * 0.05, kind)
    except NotImplementedError:
        width = gguf.GGML_QUANT_SIZES[kind][0]
        blocks = random_blocks(kind, shape[0] * shape[1] // width, random, scale=0.0005)
        return blocks.reshape(shape[0], -1)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("mixed") / "m.gguf"
    writer, random = gguf.GGUFWriter(path, "llama"), np.random.default_rng(1)
    layers = -(-len(MIXED) // len(MATRICES))
    writer.add_context_length(64)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(FEED)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_vocab_size(VOCAB)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tensor("token_embd.weight", random.standard_normal((VOCAB, HIDDEN)).astype(np.float32))
    writer.add_tensor("output_norm.weight", np.ones(HIDDEN, np.float32))
    kinds = iter(MIXED * 2)
    for layer in range(layers):
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{layer}.{name}.weight", np.ones(HIDDEN, np.float32))
        for name, shape in MATRICES.items():
            kind = next(kinds)
            writer.add_tensor(f"blk.{layer}.{name}.weight", stored(kind, shape, random), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.slow
def test_logits_are_those_of_transformers(mixed: Path, tmp_path: Path) -> None:
    """From the same file, by transformers' own reader of each type."""
    transformers.utils.logging.disable_progress_bar()
    job = open_job(checkpoint=str(mixed), dtype="float32")
    assert {info.dtype for info in job.checkpoint.headers.values()} >= {TYPES[kind] for kind in MIXED}
    bundle = bringup.build(job, out=tmp_path / "b", target="torch", max_seq_len=64, buckets=(16,), all_logits=True)
    tokens = np.random.default_rng(2).integers(0, VOCAB, 12).tolist()
    values = load(bundle).prefill(tokens)
    model = transformers.AutoModelForCausalLM.from_pretrained(mixed.parent, gguf_file=mixed.name, dtype=torch.float32)
    with torch.no_grad():
        truth = model.eval()(torch.tensor([tokens])).logits[0].numpy()
    assert np.abs(truth).max() > 1
    np.testing.assert_allclose(values, truth, atol=2e-4 * np.abs(truth).max())
