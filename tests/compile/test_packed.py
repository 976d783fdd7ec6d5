"""Packed parameters are compiled as their words, and give the numbers that numpy gives of the unpacked values."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

import bringup
from bringup.diagnostics import BringupError
from bringup.graphs.core.graph import Graph
from bringup.graphs.core.module import Module, Param
from bringup.graphs.layers.embedding import Embedding
from bringup.graphs.layers.linear import Linear

WIDTH, VOCAB, LENGTH = 32, 48, 40
TOKENS = [3, 1, 4, 1, 5, 9, 2, 6]

# dtype, axis of the words, values to a word; and the dtype of the words.
PACKS = {
    "words": ("int4", "out", 8, "int32"),
    "bytes": ("uint4", "in", 2, "uint8"),
    "halves": ("int4", "in", 4, "int16"),
    "longs": ("uint4", "out", 16, "int64"),
}
TOLERANCE = 1e-5  # of logits near 1: float32, sums of 32 products


@dataclass(frozen=True)
class Config:
    family = "packed"
    vocab_size: int = VOCAB
    max_positions: int = LENGTH


class Packed(Module):
    """A matrix of 4-bit values, multiplied with after its words are taken apart."""

    def __init__(self, dtype: str, axis: str, count: int) -> None:
        super().__init__()
        self.signed, self.dim, self.count = dtype == "int4", ("in", "out").index(axis), count
        self.w = Param("in out", {"in": WIDTH, "out": WIDTH}, dtype=dtype, pack=f"{axis}:{count}")

    def forward(self, x):
        values = [(self.w >> 4 * index) & 15 for index in range(self.count)]
        import torch

        apart = torch.stack(values, self.dim + 1).reshape(WIDTH, WIDTH).to(torch.int64)
        apart = apart - 16 * (apart > 7).to(apart.dtype) if self.signed else apart
        return x @ (apart.to(x.dtype) / 64)


class Layer(Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.bytes, self.halves, self.longs = (Packed(*pack[:3]) for pack in PACKS.values())

    def forward(self, x, step):
        return x + self.longs(self.halves(self.bytes(self.words(x))))


class PackedGraph(Graph):
    layer_path = "layers_"

    def __init__(self) -> None:
        super().__init__(Config(), "float32")
        self.embed = Embedding("vocab m", vocab=VOCAB, m=WIDTH)
        self.layers_ = [Layer(), Layer()]
        self.head = Linear("out:vocab in:m", vocab=VOCAB, m=WIDTH, bias=False)

    def prologue(self, step):
        return (self.embed(step.tokens),)

    def final(self, x):
        return x

    def epilogue(self, x):
        return self.head(x)


def words_of(values: np.ndarray, axis: str, count: int, dtype: str) -> np.ndarray:
    """Values in words along an axis, the first in the low bits: one value after the other."""
    along = np.moveaxis(values, ("in", "out").index(axis), -1)
    packed = np.zeros((*along.shape[:-1], along.shape[-1] // count), np.uint64)
    for place in np.ndindex(packed.shape):
        for index in range(count):
            value = int(along[(*place[:-1], place[-1] * count + index)]) & 15
            packed[place] |= np.uint64(value << 4 * index)
    narrow = packed.astype(f"uint{4 * count}").view(dtype)
    return np.ascontiguousarray(np.moveaxis(narrow, -1, ("in", "out").index(axis)))


@pytest.fixture(scope="module")
def model() -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Weights by name, and the logits of the last token by numpy."""
    rng = np.random.default_rng(0)
    embed = rng.standard_normal((VOCAB, WIDTH)).astype(np.float32)
    head = rng.standard_normal((VOCAB, WIDTH)).astype(np.float32) / WIDTH
    weights = {"embed.weight": embed, "head.weight": head}
    x = embed[TOKENS[-1]]
    for layer in range(2):
        y = x
        for name, (dtype, axis, count, word) in PACKS.items():
            values = rng.integers(-8, 8, (WIDTH, WIDTH)) + (0 if dtype == "int4" else 8)
            weights[f"layers_.{layer}.{name}.w"] = words_of(values, axis, count, word)
            y = y @ (values / np.float32(64)).astype(np.float32)
        x = x + y
    return weights, head @ x


@pytest.mark.parametrize("target", ["torch", pytest.param("cpu", marks=pytest.mark.slow)])
def test_packed_parameters_give_numpys_numbers(model, target, tmp_path):
    weights, wanted = model
    graph = PackedGraph()
    for name, (_, _, count, word) in PACKS.items():
        shape, dtype = graph.signature()[f"layers_.0.{name}.w"].storage
        assert (np.prod(shape) * count, dtype) == (WIDTH * WIDTH, word)
    bundle = bringup.build(graph, weights=weights, out=tmp_path / "a.bundle", target=target, buckets=[8])
    session = bringup.load(bundle)
    prefill = session.prefill(TOKENS)
    assert np.abs(wanted).max() > 0.1
    np.testing.assert_allclose(np.asarray(prefill).reshape(-1)[-VOCAB:], wanted, atol=TOLERANCE * 10, rtol=TOLERANCE)


def test_another_packing_is_another_kind_of_layer():
    """Logically the same parameter, the same settings: the words that a forward sees differ."""
    plain, other, same = Module(), Module(), Module()
    plain.w = Param("in out", {"in": 16, "out": 16}, dtype="int4", pack="out:8")
    other.w = Param("in out", {"in": 16, "out": 16}, dtype="int4", pack="in:8")
    same.w = Param("in out", {"in": 16, "out": 16}, dtype="int4", pack="out:8")
    assert plain.structural_key() == same.structural_key()
    assert plain.structural_key() != other.structural_key()


@pytest.mark.parametrize(
    ("pack", "said"),
    [
        ("out:8", "axis `out` has 12 values"),
        ("foo:2", "has no axis `foo`"),
        ("out", "is not an axis and a number"),
        ("out:x", "is not an axis and a number"),
        ("out:0", "is not an axis and a number"),
        (":4", "is not an axis and a number"),
        ("out:3", "a word of 12"),
        ("h:2", "is a part of an axis"),
    ],
)
def test_a_packing_that_does_not_fit_is_refused(pack, said):
    with pytest.raises(BringupError, match=said) as caught:
        Param("out in:(h d)", {"out": 12, "h": 2, "d": 2}, dtype="int4", pack=pack)
    assert caught.value.findings[0].code == "BU302"


@pytest.mark.parametrize("dtype", [None, "int8", "float32", "q4_0"])
def test_only_values_of_less_than_a_byte_are_packed(dtype):
    with pytest.raises(BringupError, match="fill whole bytes"):
        Param("out in", {"out": 16, "in": 4}, dtype=dtype, pack="out:4")


def test_values_of_less_than_a_byte_that_are_not_packed_are_refused(tmp_path):
    graph = PackedGraph()
    graph.extra = Param("m", m=8, dtype="uint4")
    with pytest.raises(BringupError, match=r"BU303.*`extra` would be stored as uint4"):
        bringup.build(graph, weights={}, out=tmp_path / "a.bundle")


def test_a_signature_file_with_a_packing_that_does_not_fit_is_refused(tmp_path):
    from bringup.graphs.core.signature import Signature

    path = tmp_path / "signature.json"
    path.write_text('{"w": {"axes": "a b", "sizes": {"a": 3, "b": 2}, "dtype": "int4", "pack": ["a", 2]}}')
    with pytest.raises(BringupError, match="BU123"):
        Signature.from_json(path)
