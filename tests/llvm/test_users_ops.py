"""Operators that users' models have, as kernels of the CPU against torch's own results for the same numbers.

Each case is traced as a stage of a model is. Shapes are odd, and one thread is compared with more than there are rows.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from bringup.compile.pipeline import build
from bringup.compile.runtime.session import load
from bringup.diagnostics import BringupError
from tests.compile import test_lowering as toys
from tests.llvm.programs import assert_near, results, traced
from tests.models import parity
from tests.schedule.models import CONTEXT, PREFILL, VOCAB
from tests.schedule.test_refused import CASES as CHANGES
from tests.schedule.test_refused import job_with

NEAR = 1e-5  # relative to the result, or for small ones to 1
INF, NAN = float("inf"), float("nan")


def of(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def check(function: Callable[..., Any], *values: Tensor, machine: str = "host") -> None:
    """One program of what several functions give; with one thread and with five the same bits."""
    wanted = function(*values)
    graph = traced(function, values)
    found, _ = results(graph, values, machine=machine, threads=5)
    for ours, theirs in zip(found, wanted, strict=True):
        assert_near(ours, theirs, NEAR)
    again, _ = results(graph, values, machine=machine, threads=1)
    assert all(one.tobytes() == other.tobytes() for one, other in zip(found, again, strict=True))


@pytest.mark.parametrize("machine", ["host", "generic"])
def test_functions_of_one_number(machine: str) -> None:
    x = torch.cat([torch.tensor([0.0, -0.0, INF, -INF, NAN, 0.5, 1.5, 2.5, -0.5, 1e-6, 30.0, -30.0]), of(19)])
    names = [*["sin", "cos", "log", "log1p", "exp2", "expm1", "erf", "floor", "ceil", "round", "trunc"]]
    names += [*["sign", "reciprocal", "isnan", "isinf", "atan", "sinh"]]
    more = (F.softplus, F.elu, F.leaky_relu, F.mish, F.hardswish, torch.logsumexp)

    def every(x: Tensor) -> tuple[Tensor, ...]:
        wide = [getattr(torch, name)(x.clamp(-20, 20) if name == "sinh" else x) for name in names]
        return *wide, *(each(x[5:]) for each in more[:-1]), torch.logsumexp(x[5:], 0), F.gelu(x[5:], approximate="tanh")

    check(every, x, machine=machine)


def test_two_numbers() -> None:
    x, y = (
        torch.cat([of(11), torch.tensor([INF, NAN, 1.0, -7.0])]),
        torch.cat([of(11).flip(0), torch.tensor([2.0] * 4)]),
    )
    ints = torch.tensor([-(2**63), 2**63 - 1, -7, 7, 0]), torch.tensor([-1, 3, 2, -2, 5])

    def every(x: Tensor, y: Tensor, n: Tensor, m: Tensor) -> tuple[Tensor, ...]:
        quotients = [torch.div(x, y, rounding_mode=mode) for mode in ("floor", "trunc")]
        rests = [torch.remainder(x, y), torch.fmod(x, y), torch.remainder(n, m), torch.fmod(n, m), n[2:] // m[2:]]
        small = n.to(torch.int8) * 3, m.to(torch.uint8) + 250, (n > 0) + (m > 0), (n > 0) * (m > 0)
        return *quotients, *rests, x.abs() ** y, 2.0**y, n**3, *small, n ^ m, n << 3, n >> 2, x.double().exp() / 3

    check(every, x, y, *ints)


def test_bits_of_numbers() -> None:
    x, n = torch.tensor([1.5, -0.0, INF, 3.0e-39]), torch.tensor([1, -5, 2**62])

    def every(x: Tensor, n: Tensor) -> tuple[Tensor, ...]:
        floats = n.view(torch.float64), n.to(torch.int32).view(torch.float32)
        return *floats, x.view(torch.int32), x.double().view(torch.int64)

    found, _ = results(traced(every, (x, n)), (x, n))
    assert [each.tobytes() for each in found] == [each.numpy().tobytes() for each in every(x, n)]


def test_a_division_by_zero_ends_no_process() -> None:
    """torch raises an error there; a kernel cannot."""
    graph = traced(lambda n, m: (n // m, n % m), (torch.tensor([3, 5]), torch.tensor([1, 5])))
    (quotient, rest), _ = results(graph, (torch.tensor([3, 5]), torch.tensor([0, 5])))
    assert (quotient.tolist(), rest.tolist()) == ([0, 1], [0, 0])


@pytest.mark.parametrize("machine", ["host", "generic"])
def test_reductions(machine: str) -> None:
    x = of(3, 4, 7)
    x[0, 0, 0], x[1, 2, 3], x[2, 1, :2] = NAN, INF, 0.25
    plain = of(3, 4, 7)

    def every(x: Tensor, p: Tensor) -> tuple[Tensor, ...]:
        found = [each(x, axis) for each in (torch.sum, torch.mean, torch.amax, torch.argmin) for axis in (0, 1, -1)]
        found += [x.sum((0, 2), keepdim=True), x.amax((0, 2)), x.argmax(), (x > 0).any(1), (x > 9).all(), x.prod(1)]
        return *found, *x.max(1), *p.min(0), (p > 0).sum(-1), p.var(-1), p.std(0), p.norm(dim=1), p[:0].sum(0)

    check(every, x, plain, machine=machine)


def test_in_order() -> None:
    """Ties, NaN, infinities and both zeros."""
    x = torch.tensor([[1.0, NAN, -0.0, 0.0, INF, 1.0, -INF, -3.0, 1.0]]).repeat(3, 1) * torch.tensor([[1.0], [-1], [2]])
    n = torch.tensor([[3, 1, 3, -(2**63), 2**63 - 1, 0]])

    def every(x: Tensor, n: Tensor) -> tuple[Tensor, ...]:
        up, down = torch.sort(x, dim=-1, stable=True), torch.sort(x, dim=0, stable=True, descending=True)
        sums = x[:, 2:4].cumsum(0), n.cumsum(1), *torch.cummax(x, 1), x.cumprod(0)
        return *up, *down, *n.sort(stable=True), torch.topk(x, 4)[0], torch.topk(n, 2, largest=False)[0], *sums

    check(every, x, n)


def test_the_order_of_a_long_line() -> None:
    x = of(2, 1000)
    check(lambda x: (*torch.sort(x, stable=True), *torch.topk(x, 50), x.cumsum(-1), x.argsort(0)), x)


@pytest.mark.parametrize("machine", ["host", "generic"])
def test_convolutions(machine: str) -> None:
    """Depthwise and causal as of state-space models, and of any stride, dilation and number of groups."""
    x, w, full, image = of(2, 4, 9), of(4, 1, 4), of(6, 2, 3), of(1, 3, 6, 5)

    def every(x: Tensor, w: Tensor, b: Tensor, full: Tensor, image: Tensor, kernel: Tensor) -> tuple[Tensor, ...]:
        causal = F.conv1d(F.pad(x, (3, 0)), w, b, groups=4)
        wide = F.conv1d(x, full, stride=2, dilation=2, padding=3, groups=2)
        return causal, wide, F.conv2d(image, kernel, padding=(1, 0), stride=(2, 1))

    check(every, x, w, of(4), full, image, of(5, 3, 3, 2), machine=machine)


def test_products_of_any_strides() -> None:
    x, y, n = of(3, 4, 5), of(3, 5, 6), torch.arange(12).reshape(3, 4)

    def every(x: Tensor, y: Tensor, n: Tensor) -> tuple[Tensor, ...]:
        turned = torch.bmm(y.transpose(1, 2), x.transpose(1, 2)), torch.einsum("bij,bjk->kib", x, y)
        sums = (
            torch.einsum("bij,bij->bi", x, x),
            torch.matmul(x[None, None], y),
            x @ y[0, :, 0],
            torch.outer(x[0, 0], x[0, 1]),
        )
        return (
            *turned,
            *sums,
            torch.outer(x[0, 0], y[0, 0]),
            n @ n.T,
            F.linear(x, y[0].T, y[0, 0]),
            torch.addmm(x[0, :1], x[0].T, x[1], alpha=2),
        )

    check(every, x, y, n)


def test_places() -> None:
    x, i, j = of(3, 4, 5), torch.tensor([2, 0]), torch.tensor([1, -1])
    at = torch.randint(0, 4, (3, 2, 5), generator=torch.Generator().manual_seed(0))

    def every(x: Tensor, i: Tensor, j: Tensor, at: Tensor) -> tuple[Tensor, ...]:
        reads = x[i, j], x[i, :, j], x[:, i[:, None], j], x.gather(1, at), x.flip(0, 2), x.roll(2, 1), x.repeat(2, 1, 1)
        puts = (
            x.scatter(1, at, x * 2),
            x.scatter_add(1, at, x),
            x.scatter_reduce(1, at, x, "amax"),
            x.scatter(1, at, 3.0),
        )
        rows = x.index_put((i, j), x[0, :2]), x.index_add(0, j.abs(), x[:2]), x.masked_fill(x > 0, -INF)
        parts = x.tril(-1), x[0].triu(1), F.pad(x, (1, -2, 0, 3), value=2.5), torch.stack((x, x), 1), *x.split(3, 2)
        return *reads, *puts, *rows, *parts, F.one_hot(at, 4), F.embedding(at, x[0])

    check(every, x, i, j, at)


@pytest.mark.parametrize("dtype", [pytest.param(torch.float16, marks=pytest.mark.slow), torch.bfloat16])
@pytest.mark.parametrize("rule", ["sum", "prod", "amax", "amin"])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_scatter_reduce_rounds_once(axis: int, rule: str, dtype: torch.dtype) -> None:
    """Bit for bit torch's: it combines 16-bit elements in float32 too. Some lines of the target are not written."""
    x, source = (of(*shape).abs().add(0.5).to(dtype) for shape in ((5, 6, 7), (40, 41, 42)))
    inside = [slice(4)] * 3
    inside[axis] = slice(40)
    source = source[tuple(inside)].contiguous()
    at = torch.randint(0, x.shape[axis], source.shape, generator=torch.Generator().manual_seed(0))

    def reduced(x: Tensor, at: Tensor, source: Tensor) -> Tensor:
        return x.scatter_reduce(axis, at, source, rule)

    values = x, at, source
    for threads in (1, 5):
        (found,), _ = results(traced(reduced, values), values, threads=threads)
        np.testing.assert_array_equal(found.astype(np.float32), reduced(*values).float().numpy())


def test_norms_and_shares() -> None:
    x, w = of(3, 4, 10), of(10)

    def every(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        shares = [each(x, axis) for each in (F.softmax, F.log_softmax) for axis in (0, 1, -1)]
        norms = F.layer_norm(x, (10,), w, w), F.layer_norm(x, (4, 10)), F.rms_norm(x, (10,), w), F.group_norm(x, 2)
        masked = F.scaled_dot_product_attention(x[None], x[None], x[None], is_causal=True)
        return *shares, *norms, masked, F.normalize(x, dim=-1), F.softmax(x.bfloat16(), 1)

    check(every, x, w)


def test_changes_in_place() -> None:
    """Of temporaries and their parts, and of a state: by rows that an index names, by a slice, as a whole."""

    def change(state: Tensor, x: Tensor, i: Tensor) -> tuple[Tensor, ...]:
        y = torch.zeros(4, 6)
        y[:, 1:3] = x[:, :2]
        part = y[2:]
        part += 1
        y.masked_fill_(y > 1, 0.5)
        before = state[i].clone()
        state[i] = torch.cat((before[:, 1:], x[:2, :1]), 1)
        state[:1] *= 2
        state.index_add_(0, torch.tensor([3, 3]), x[:2])
        return y, part * 1, before, state.sum(0)

    for threads in (1, 4):
        state, x, i = of(5, 6), of(4, 6), torch.tensor([3, 1])
        graph, given = traced(change, (x, i), (state,)), state.clone()
        found, (after,) = results(graph, (x, i), (given,), threads=threads)
        for ours, theirs in zip(found, change(state, x, i), strict=True):
            assert_near(ours, theirs, NEAR)
        assert_near(after, state, NEAR)


def test_an_index_beyond_its_axis_touches_nothing_else() -> None:
    """torch raises an error there. Memory around the tensors is checked by `native.run`."""
    given = of(3, 4), torch.tensor([2, 0]), of(2, 4)
    graph = traced(lambda x, i, y: (x.index_put((i,), y), x[i]), given)
    (put, _), _ = results(graph, (given[0], torch.tensor([-4, 3]), given[2]))
    assert_near(put, given[0], 0)


def test_float64_and_small_dtypes() -> None:
    x = of(3, 5)

    def every(x: Tensor) -> tuple[Tensor, ...]:
        wide = x.double()
        narrow = [x.to(dtype).cumsum(0) for dtype in (torch.int8, torch.int32, torch.float16, torch.bfloat16)]
        return wide.sin() @ wide.T, wide.softmax(0), wide.sum(), *narrow, (x * 100).to(torch.uint8), wide.sort(0)[0]

    check(every, x.abs())


@pytest.mark.parametrize("model", ["gpt", pytest.param("window", marks=pytest.mark.slow)])
def test_toy_models(model: str, tmp_path: Path) -> None:
    """Models of plain torch operators, which write their caches with `index_copy_`: padded prompts, then decode."""
    run = toys.executor("llvm", model, torch.float32)
    built, tokens = toys.build(model, torch.float32, False), np.random.default_rng(1).integers(0, 300, 80)
    expected = toys.eager(built.module, tokens)
    first = run.step(f"prefill_{toys.BUCKET}", toys.make_step(tokens[:50], 0, toys.BUCKET))["logits"]
    toys.assert_close(first[0], expected[49], torch.float32)
    for at in range(50, 80):
        decoded = run.step("decode", toys.make_step(tokens[at : at + 1], at, 1))["logits"]
        toys.assert_close(decoded[0], expected[at], torch.float32)


@pytest.mark.parametrize("name", CHANGES)
def test_a_graph_of_one_s_own(name: str, tmp_path: Path) -> None:
    function, _ = CHANGES[name]
    job, tokens = job_with(function, tmp_path), parity.random_tokens(PREFILL, VOCAB)
    settings = {"max_seq_len": CONTEXT, "buckets": (PREFILL,), "all_logits": True}
    ours, theirs = (
        load(build(job, out=tmp_path / target, target=target, **settings)).prefill(tokens)
        for target in ("llvm", "schedule")
    )
    assert np.abs(ours - theirs).max() <= 1e-5 * np.abs(theirs).max()


def test_an_operator_that_no_kernel_takes(tmp_path: Path) -> None:
    """Named with the targets that take it."""
    job = job_with(lambda x: x @ torch.linalg.inv(x.T @ x), tmp_path)
    with pytest.raises(BringupError, match="BU504") as caught:
        build(job, out=tmp_path / "b", target="llvm", max_seq_len=CONTEXT, buckets=(PREFILL,), all_logits=True)
    (finding,) = caught.value.findings
    assert "`aten.linalg_inv_ex.default`" in finding.message
    assert "iree-cpu" in finding.help
