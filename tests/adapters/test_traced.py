"""Traced functions: each step on headers gives the elements that numpy gives on arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bringup.adapters import compute, dict_checkpoint, make_plan, materialise, reverse, traced
from bringup.adapters.planning.traced import Tensors
from bringup.graphs.core.axes import sized
from bringup.graphs.core.signature import Declared, Signature

Function = Callable[[Any, Any], Any]
A = np.arange(2 * 6 * 4, dtype=np.float32).reshape(2, 6, 4)
B = 100 + np.arange(2 * 6 * 4, dtype=np.float32).reshape(2, 6, 4)


def run(function: Function, arrays: Mapping[str, np.ndarray]) -> tuple[Any, Any]:
    """What a plan gives for a function's result, and what the function gives for arrays."""
    wanted = np.asarray(function(arrays["a"], arrays["b"]))
    names = [f"x{k}" for k in range(wanted.ndim)]
    axes = sized(" ".join(names), dict(zip(names, wanted.shape, strict=True)))
    signature = Signature({"p": Declared("p", axes, wanted.dtype.name)})
    checkpoint = dict_checkpoint(dict(arrays), {})
    adapter = traced(lambda tensors: {"p": function(tensors["a"], tensors["b"])})
    plan = make_plan(signature, adapter, checkpoint.headers)
    assert [problem.message for problem in plan.problems] == []
    return materialise(plan, checkpoint)["p"], wanted


@pytest.mark.parametrize(
    "function",
    [
        lambda a, b: a.T,
        lambda a, b: a.transpose(1, 0, 2),
        lambda a, b: np.transpose(a, (2, 0, 1)),
        lambda a, b: np.transpose(a),
        lambda a, b: a.reshape(3, -1),
        lambda a, b: np.reshape(a, (4, 12)).T,
        lambda a, b: a.swapaxes(0, 2).reshape(8, 6),
        lambda a, b: np.moveaxis(a, 0, -1),
        lambda a, b: a[1],
        lambda a, b: a[:, 2:5, -1],
        lambda a, b: a[..., 1],
        lambda a, b: a[:, ::2],
        lambda a, b: a[:, 1::3, 1::2],
        lambda a, b: a[:, 2::2],
        lambda a, b: np.concatenate([a, b], axis=-1),
        lambda a, b: np.stack([a, b], axis=1),
        lambda a, b: np.stack(np.split(a, 3, axis=1)),
        lambda a, b: np.concatenate(np.split(b, [2, 3], axis=1)[::-1], 1),
        lambda a, b: np.concatenate(list(a)),
        lambda a, b: a.ravel(),
        lambda a, b: a.view("uint16"),
        lambda a, b: a.view("uint16").view("float32")[0],
        lambda a, b: compute(np.add, a, b, shape=(2, 6, 4)).T,
    ],
)
def test_each_step_is_numpy_s(function: Function) -> None:
    found, wanted = run(function, {"a": A, "b": B})
    assert np.array_equal(found, wanted)


@st.composite
def steps(draw: st.DrawFn) -> list[tuple[str, Any]]:
    """Some movements, each possible on what the ones before it gave."""
    shape, chosen = list(A.shape), list[tuple[str, Any]]()
    for kind in draw(st.lists(st.sampled_from(["transpose", "reshape", "cut", "join"]), min_size=1, max_size=5)):
        if kind == "transpose":
            order = draw(st.permutations(range(len(shape))))
            shape, step = [shape[k] for k in order], ("transpose", tuple(order))
        elif kind == "reshape":
            size = int(np.prod(shape))
            first = draw(st.sampled_from([n for n in range(1, size + 1) if size % n == 0]))
            shape = [first, size // first]
            step = ("reshape", tuple(shape))
        elif kind == "cut":
            axis = draw(st.integers(0, len(shape) - 1))
            start = draw(st.integers(0, shape[axis] - 1))
            stop = draw(st.integers(start + 1, shape[axis]))
            shape[axis] = stop - start
            step = ("cut", (axis, start, stop))
        else:
            axis = draw(st.integers(0, len(shape) - 1))
            shape[axis] *= 2
            step = ("join", axis)
        chosen.append(step)
    return chosen


@settings(max_examples=60, deadline=None)
@given(steps())
def test_steps_together_are_numpy_s(chosen: list[tuple[str, Any]]) -> None:
    def function(a: Any, b: Any) -> Any:
        for kind, how in chosen:
            if kind in ("transpose", "reshape"):
                a = getattr(a, kind)(how)
            elif kind == "cut":
                a = a[(slice(None),) * how[0] + (slice(*how[1:]),)]
            else:
                a = np.concatenate([a, a], axis=how)
        return a

    found, wanted = run(function, {"a": A, "b": B})
    assert np.array_equal(found, wanted)


def test_copies() -> None:
    """Those of a conversion function that makes arrays contiguous: the same numbers, traced or not."""
    found, wanted = run(lambda a, b: np.copy(a.T.copy(), order="C"), {"a": A, "b": B})
    assert np.array_equal(found, wanted)
    assert found.flags.c_contiguous


def test_movements_are_taken_back() -> None:
    checkpoint = dict_checkpoint({"a": A}, {})
    signature = Signature({"p": Declared("p", sized("x y", {"x": 8, "y": 6}), "float32")})
    plan = make_plan(signature, traced(lambda t: {"p": t["a"].swapaxes(1, 2).reshape(8, 6)}), checkpoint.headers)
    assert np.array_equal(reverse(plan, materialise(plan, checkpoint))["a"], A)


@pytest.mark.parametrize(
    ("function", "error", "said"),
    [
        (lambda a, b: a + b, TypeError, "unsupported operand"),
        (lambda a, b: np.sort(a), TypeError, "numpy's `sort` is not one of concatenate"),
        (lambda a, b: np.asarray(a), TypeError, "has no values"),
        (lambda a, b: np.array(a), TypeError, r"x.copy\(\) for np.array\(x\)"),
        (lambda a, b: np.from_dlpack(a), TypeError, r"x.copy\(\) for .*np.from_dlpack\(x\)"),
        (lambda a, b: np.ascontiguousarray(a.T), TypeError, r"x.copy\(\) for .*np.ascontiguousarray\(x\)"),
        (lambda a, b: a[[1, 0]], TypeError, "integers and ranges"),
        (lambda a, b: a[2], IndexError, "index 2 of an axis of 2"),
        (lambda a, b: a[:, ::-1], ValueError, "negative step"),
        (lambda a, b: a[:, 3:3], ValueError, "empty"),
        (lambda a, b: a[:, ::4], ValueError, "not a multiple"),
        (lambda a, b: a.reshape(5, -1), ValueError, "has no shape"),
        (lambda a, b: a.transpose(0, 0, 1), ValueError, "not a permutation"),
        (lambda a, b: np.split(a, 4, axis=1), ValueError, "4 equal parts"),
        (lambda a, b: a[0, 0, 0, 0], IndexError, "4 indices"),
    ],
)
def test_what_cannot_be_traced_is_refused(function: Function, error: type[Exception], said: str) -> None:
    tensors = Tensors(dict_checkpoint({"a": A, "b": B}, {}).headers)
    with pytest.raises(error, match=said):
        function(tensors["a"], tensors["b"])


def test_what_is_known_without_values() -> None:
    tensors = Tensors(dict_checkpoint({"a": A}, {}).headers)
    a = tensors["a"]
    assert (a.shape, a.ndim, a.size, a.dtype, len(a)) == ((2, 6, 4), 3, 48, np.float32, 2)
    assert ("a" in tensors, "b" in tensors, list(tensors), len(tensors)) == (True, False, ["a"], 1)
