"""Rows rounded to float8, and products of them: on the emulator, next to numpy with each number rounded by itself."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch

from bringup.compile.kernels.select.registry import calls_of
from bringup.compile.schedule.costs import cost_of
from bringup.compile.schedule.graph.op_graph import OpGraph, View
from bringup.graphs.core.form import Form
from bringup.graphs.ops.fp8_linear import to_fp8
from tests.kernels.graphs import Function, far
from tests.kernels.quant_weights import Case, Weight
from tests.kernels.test_products import rms_norm

E4M3 = ml_dtypes.float8_e4m3fn
NEAR = {"float32": 2e-6, "bfloat16": 2**-8}
CARDS = ("sm_80", "sm_89", "sm_90")  # by arithmetic and in float16; by instructions of a warp, and of a warp group


def rounded(x: np.ndarray, columns: int) -> tuple[np.ndarray, np.ndarray]:
    """(codes, scales) of rows of float32, block by block: divisions of IEEE 754, and ml_dtypes' rounding to float8."""
    codes = np.empty(x.shape, np.uint8)
    scales = np.empty((*x.shape[:-1], -(-x.shape[-1] // columns)), np.float32)
    for row in np.ndindex(x.shape[:-1]):
        for block in range(scales.shape[-1]):
            at = (*row, slice(block * columns, (block + 1) * columns))
            scales[*row, block] = max(np.abs(x[at]).max(), np.float32(1e-30)) / np.float32(448)
            codes[at] = (x[at] / scales[*row, block]).astype(E4M3).view(np.uint8)
    return codes, scales


def numbers(codes: np.ndarray, scales: np.ndarray, columns: int) -> np.ndarray:
    """What codes and scales stand for, in float64."""
    of_each = np.repeat(scales.astype(np.float64), columns, -1)[..., : codes.shape[-1]]
    return codes.view(E4M3).astype(np.float64) * of_each


def round_rows(f: Function, x: View, columns: int, name: str = "q", scale: View | None = None) -> tuple[View, View]:
    """A node that rounds rows, and its results."""
    blocks = -(-x.shape[-1] // columns)
    shapes = {f"{name}.codes": (x.shape, "uint8"), f"{name}.scales": ((*x.shape[:-1], blocks), "float32")}
    codes = f.node("bringup.to_fp8.default", shapes, x=x, columns=columns, scale=scale)
    shape = shapes[f"{name}.scales"][0]
    return codes, View(f"{name}.scales", shape, (*(blocks,) * (len(shape) - 1), 1)[-len(shape) :])


def extreme(rows: int, channels: int) -> np.ndarray:
    """Rows of zeros, of huge and of tiny numbers, of one number that is not zero, and of numbers between."""
    x = np.random.default_rng(rows + channels).normal(size=(rows, channels)).astype(np.float32)
    x[0], x[1, 1:] = 0, 0
    x[2], x[3] = x[2] * np.float32(1e37), x[3] * np.float32(1e-37)
    x[4] *= 10.0 ** np.linspace(-6, 3, channels, dtype=np.float32)
    return x


@pytest.mark.parametrize("card", CARDS)
@pytest.mark.parametrize(("channels", "columns"), [(256, 128), (200, 64), (77, 77), (48, 16)])
def test_rows(card: str, channels: int, columns: int) -> None:
    """The same bits as numpy has: columns that no block divides, and one scale a row."""
    f = Function()
    x = f.array("x", extreme(7, channels), "float32", "value")
    round_rows(f, x, columns)
    machine = f.emulated(f.graph("q.codes", "q.scales"), card)
    codes, scales = rounded(f.arrays["x"], columns)
    np.testing.assert_array_equal(machine.read("q.scales"), scales)
    np.testing.assert_array_equal(machine.read("q.codes"), codes)
    for found, wanted in zip(to_fp8(torch.from_numpy(f.arrays["x"]), columns, None), (codes, scales), strict=True):
        np.testing.assert_array_equal(found.numpy(), wanted)


@pytest.mark.parametrize("card", ["sm_80", "sm_90"])
def test_every_number_between_two_codes(card: str) -> None:
    """All numbers of bfloat16 up to 448, all halves between two codes, and the next numbers of float32 to both sides.

    A column of 448 in each row makes its scale 1.
    """
    every = np.arange(1 << 16, dtype=np.uint16).view(ml_dtypes.bfloat16).astype(np.float32)
    codes = np.arange(127, dtype=np.uint8).view(E4M3).astype(np.float32)
    halves = (codes[1:] + codes[:-1]) / 2
    near = [np.nextafter(halves, np.float32(to)) for to in (0, 448)]
    given = np.concatenate(
        [every[np.abs(every) <= 448], *(sign * part for part in (halves, *near) for sign in (1, -1))]
    )
    x = np.zeros((-(-len(given) // 127), 128), np.float32)
    x[:, 1:].flat[: len(given)] = given
    x[:, 0] = 448
    f = Function()
    round_rows(f, f.array("x", x, "float32", "value"), 128)
    machine = f.emulated(f.graph("q.codes", "q.scales"), card)
    np.testing.assert_array_equal(machine.read("q.codes"), x.astype(E4M3).view(np.uint8))
    assert (machine.read("q.scales") == 1).all()


@pytest.mark.parametrize("card", ["sm_80", "sm_90"])
@pytest.mark.parametrize("each", [False, True])
def test_a_scale_that_is_given(card: str, each: bool) -> None:
    """One number for all rows, or one for the rows of each expert; what is beyond 448 of it becomes 448."""
    f, shape = Function(), (3, 5, 48)
    x = extreme(15, 48).reshape(shape)
    scale = np.array([0.25, 3e-3, 1.7], np.float32).reshape(3, 1, 1) if each else np.float32(0.0123).reshape(())
    view = f.array("scale", scale, "float32", "weight")
    round_rows(f, f.array("x", x, "float32", "value"), 48, scale=view)
    machine = f.emulated(f.graph("q.codes", "q.scales"), card)
    with np.errstate(over="ignore"):
        codes = (x / scale).clip(-448, 448).astype(E4M3).view(np.uint8)
    assert {0, 0x7E, 0xFE} <= set(codes.flat)
    for found in (
        (machine.read("q.codes"), machine.read("q.scales")),
        [part.numpy() for part in to_fp8(torch.from_numpy(x), 48, torch.from_numpy(np.asarray(scale)))],
    ):
        np.testing.assert_array_equal(found[0], codes)
        np.testing.assert_array_equal(found[1], np.broadcast_to(scale, (3, 5, 1)))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_gives_no_number(value: float) -> None:
    f, x = Function(), np.ones((2, 64), np.float32)
    x[0, 40] = value
    round_rows(f, f.array("x", x, "float32", "value"), 32)
    found = f.emulated(f.graph("q.codes", "q.scales"), "sm_90").read("q.scales")
    for scales in (found, to_fp8(torch.from_numpy(x), 32, None)[1].numpy()):
        assert np.isnan(scales).tolist() == [[False, True], [False, False]]


@pytest.mark.parametrize(("dtype", "columns"), [("float32", 64), ("bfloat16", 32)])
def test_a_norm_rounds_its_rows(dtype: str, columns: int) -> None:
    """One launch gives rows, codes and scales: the codes are those of the rows in their own dtype."""
    f = Function()
    x = f.given("x", (5, 128), dtype, "value")
    n = rms_norm(f, x, "n", dtype)
    round_rows(f, n, columns)
    graph = f.graph("n", "q.codes", "q.scales")
    machine = f.emulated(graph, "sm_90")
    rows = machine.read("n").astype(np.float32)
    given, by = (f.arrays[name].astype(np.float64) for name in ("x", "n.weight"))
    wanted = given / np.sqrt((given**2).mean(1, keepdims=True) + 1e-5) * by
    assert far(rows, wanted) < {"float32": 1e-6, "bfloat16": 1e-2}[dtype]
    for found, exact in zip(("q.codes", "q.scales"), rounded(rows, columns), strict=True):
        np.testing.assert_array_equal(machine.read(found), exact)
    own = graph.buffers
    assert cost_of(graph, graph.groups[0], 1).written == sum(own[n].nbytes for n in ("n", "q.codes", "q.scales"))
    assert own["q.codes"].nbytes == 5 * 128


class Product:
    """Rows in float8 times a matrix [columns, channels] in float8, with a scale for each `block` of it."""

    def __init__(self, rows: int, channels: int, columns: int, block: tuple[int, int], dtype: str = "float32") -> None:
        self.f, self.shape, self.dtype = Function(), (rows, columns), dtype
        self.case = Case(Form(codes="float8_e4m3fn", block=block, scale="float32" if block[0] else "bfloat16"))
        self.columns = block[1] or channels
        x = self.f.random.normal(size=(rows, channels)).astype(np.float32)
        codes, scales = rounded(x, self.columns)
        self.x = numbers(codes, scales, self.columns)
        self.codes = self.f.array("x.codes", codes, "uint8", "value")
        self.scales = self.f.array("x.scales", scales, "float32", "value")

    def times(self, name: str) -> tuple[View, np.ndarray]:
        """A product, and what it is in float64."""
        weight = Weight(self.f, f"{name}.w", self.case, (self.shape[1], self.x.shape[1]), self.dtype, "fp8")
        bias = self.f.given(f"{name}.bias", self.shape[1:], self.dtype)
        given = {"codes": self.codes, "scales": self.scales, "bias": bias, **weight.arguments}
        view = self.f.node("bringup.fp8_linear.default", {name: (self.shape, self.dtype)}, **given)
        wanted = self.x @ weight.numbers.T + self.f.arrays[f"{name}.bias"].astype(np.float64)
        return view, wanted


FORMS = [
    (1, 256, 48, (128, 128)),
    (5, 200, 70, (16, 64)),
    (70, 320, 80, (1, 0)),
    (130, 96, 40, (0, 0)),
    (3, 64, 40, (16, 16)),
    (2, 160, 24, (16, 160)),
    (9, 420, 16, (7, 140)),
]


@pytest.mark.parametrize("card", CARDS)
@pytest.mark.parametrize("form", FORMS)
def test_products(card: str, form: tuple[int, int, int, tuple[int, int]]) -> None:
    """Blocks of every kind, also those that no tile divides; and the operation's own formula."""
    one = Product(*form)
    _, wanted = one.times("y")
    graph = one.f.graph("y")
    assert far(one.f.emulated(graph, card).read("y"), wanted) < NEAR["float32"]
    assert far(one.f.expected(wide=False)["y"], wanted) < NEAR["float32"]
    calls = calls_of(graph, graph.groups[0], card)
    assert calls is not None
    assert [call.kernel.stem for call in calls] == ["quant.fp8_linear"]


@pytest.mark.parametrize("card", CARDS)
def test_every_pair_of_codes(card: str) -> None:
    """Products of matrix instructions are exact, whatever the codes: a row and a column of one number each."""
    one = Product(256, 32, 256, (0, 0))
    one.times("y")
    every = np.arange(256, dtype=np.uint8)
    for name in ("x.codes", "y.w.codes"):
        one.f.arrays[name][:] = 0
        one.f.arrays[name][:, 5] = every
    one.f.arrays["x.scales"][:], one.f.arrays["y.w.scales"][:], one.f.arrays["y.bias"][:] = 1, 1, 0
    found = one.f.emulated(one.f.graph("y"), card).read("y")
    value = every.view(E4M3).astype(np.float32)
    np.testing.assert_array_equal(found, value[:, None] * value)  # NaN where either is


@pytest.mark.parametrize(("card", "rows"), [("sm_80", 20), ("sm_89", 20), ("sm_90", 20), ("sm_90", 100)])
def test_gate_up_and_rounding(card: str, rows: int) -> None:
    """silu(gate) · up as codes and scales, in the launch of both products, which stores nothing else."""
    one = Product(rows, 128, 96, (32, 32))
    f, shape = one.f, ((rows, 96), "float32")
    (gate, a), (up, b) = one.times("gate"), one.times("up")
    act = f.node("bringup.silu.default", {"act": shape}, x=gate)
    round_rows(f, f.node("aten.mul.Tensor", {"out": shape}, self=act, other=up), 32)
    graph = f.graph("q.codes", "q.scales")
    machine = f.emulated(graph, card)
    wanted = a / (1 + np.exp(-a)) * b
    found = numbers(machine.read("q.codes"), machine.read("q.scales"), 32)
    _assert_rounded(found, wanted, 32)
    assert f.run.bytes.written == graph.buffers["q.codes"].nbytes + graph.buffers["q.scales"].nbytes


def _assert_rounded(found: np.ndarray, wanted: np.ndarray, columns: int) -> None:
    """Whether numbers are those of float8 that are nearest, in blocks: half of the step at each number's size."""
    assert np.isfinite(found).all()
    blocks = np.abs(wanted).reshape(*wanted.shape[:-1], -1, columns)
    step = np.repeat(blocks.max(-1) / 448 * 2**-9, columns, -1)
    assert (np.abs(found - wanted) <= np.maximum(np.abs(wanted) * 2**-4, step / 2) * (1 + 1e-4)).all()


@pytest.mark.parametrize(("rows", "card"), [(1, "sm_90"), (40, "sm_89")])
def test_residual_and_rounding_of_the_sum(rows: int, card: str) -> None:
    """Columns of the last block are fewer; the sum itself is stored as well."""
    one = Product(rows, 64, 40, (1, 0), "bfloat16")
    f = one.f
    y, wanted = one.times("y")
    residual = f.given("r", one.shape, "bfloat16", "value")
    out = f.node("aten.add.Tensor", {"out": (one.shape, "bfloat16")}, self=residual, other=y, alpha=1)
    round_rows(f, out, 16)
    machine = f.emulated(f.graph("out", "q.codes", "q.scales"), card)
    found = machine.read("out").astype(np.float32)
    assert far(found, wanted + f.arrays["r"].astype(np.float64)) < NEAR["bfloat16"] * 2
    for name, exact in zip(("q.codes", "q.scales"), rounded(found, 16), strict=True):
        np.testing.assert_array_equal(machine.read(name), exact)


@pytest.mark.parametrize(("blocks", "rows"), [(4, 1), (3, 18)])
@pytest.mark.parametrize("block", [(16, 32), (1, 0), (0, 0)])
def test_experts(blocks: int, rows: int, block: tuple[int, int]) -> None:
    """Blocks of rows, each with the matrix of its expert, and a bias of it."""
    f, experts, inner, channels = Function(), 5, 32, 64
    columns = block[1] or channels
    x = f.random.normal(size=(blocks, rows, channels)).astype(np.float32)
    codes, scales = rounded(x, columns)
    given = {"codes_BRi": f.array("c", codes, "uint8", "value"), "scales_BRk": f.array("s", scales, "float32", "value")}
    of = np.array([3, 0, 3, 4])[:blocks]
    chosen = f.array("step:e", of, "int64", "step")
    weight = Weight(
        f, "w", Case(Form(codes="float8_e4m3fn", block=block)), (experts, inner, channels), "float32", "fp8"
    )
    bias = f.given("b", (experts, inner))
    shapes = {"y": ((blocks, rows, inner), "float32")}
    f.node("bringup.fp8_experts.default", shapes, **given, bias_eo=bias, expert_B=chosen, **weight.arguments)
    wanted = np.einsum("bri,boi->bro", numbers(codes, scales, columns), weight.numbers[of])
    wanted += f.arrays["b"].astype(np.float64)[of][:, None]
    assert far(f.emulated(f.graph("y"), "sm_90").read("y"), wanted) < NEAR["float32"]
    assert far(f.expected(wide=False)["y"], wanted) < NEAR["float32"]


def test_bytes_of_a_product() -> None:
    """Codes of both factors are a byte each, and scales four: in the schedule, and what the emulator counts."""
    one = Product(1, 512, 96, (128, 128))
    one.times("y")
    graph = one.f.graph("y")
    one.f.emulated(graph, "sm_90")
    cost = cost_of(graph, graph.groups[0], 1)
    assert cost.other == 512 + 4 * 4
    assert cost.weights == 96 * 512 + 4 * 4 + 96 * 4 + 256 * 4  # the last, a table, is counted, and kernels know it
    (call,) = _calls(graph)
    assert one.f.run.bytes.read <= 96 * 512 + 96 * 4 + call.grid[0] * (512 + 2 * 16)


def _calls(graph: OpGraph):
    calls = calls_of(graph, graph.groups[0], "sm_90")
    assert calls is not None
    return calls
