"""Functions of users: what they give is checked, and one that changes nothing is reported."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from bringup.adapters import Adapter, S, cat, compute, dict_checkpoint, hook, make_plan, materialise, traced
from bringup.adapters.algebra.copy_nest import Nest
from bringup.adapters.apply.materialise import copy_nest
from bringup.adapters.planning.plan import Plan
from bringup.diagnostics import BringupError
from bringup.graphs.core.axes import sized
from bringup.graphs.core.signature import Declared, Signature

Arrays = Mapping[str, np.ndarray]
A = np.arange(6, dtype=np.float32)
HALF = (np.arange(6) + 10).astype(np.float16)


def declared(size: int = 6, dtype: str = "float32", *names: str) -> Signature:
    axes = sized("x", {"x": size})
    return Signature({name: Declared(name, axes, dtype) for name in names or ("p",)})


def planned(adapter: Adapter, arrays: Arrays, signature: Signature) -> tuple[Plan, Callable[[], Arrays]]:
    checkpoint = dict_checkpoint(dict(arrays), {})
    plan = make_plan(signature, adapter, checkpoint.headers)
    return plan, lambda: materialise(plan, checkpoint)


def values_of(adapter: Adapter, arrays: Arrays, signature: Signature | None = None) -> list[float]:
    plan, run = planned(adapter, arrays, signature or declared())
    assert [problem.message for problem in plan.problems] == []
    assert plan.unread == []
    return run()["p"].tolist()


def problems(adapter: Adapter, arrays: Arrays, signature: Signature | None = None) -> list[tuple[str, str]]:
    plan, _ = planned(adapter, arrays, signature or declared())
    return [(problem.code, problem.message) for problem in plan.problems]


def plain(name: str = "w") -> Adapter:
    adapter = Adapter("plain")
    adapter["p"] = S(name)
    return adapter


def double(array: np.ndarray) -> np.ndarray:
    return array * 2


def test_bits_of_two_dtypes_side_by_side_are_refused() -> None:
    table = Adapter("table")
    both = cat(S("a", "q", q=6), S("b", "r", r=6))
    table["p"] = both.bits("uint16", "two").mv("n two -> (x:(n two))")
    function = traced(lambda tensors: {"p": np.concatenate([tensors["a"], tensors["b"]]).view("uint16")})
    for adapter in (table, function):
        assert problems(adapter, {"a": A, "b": HALF}, declared(24, "uint16")) == [
            ("BU106", "the bits of float16 next to float32 are not those of one dtype")
        ]


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_a_traced_concatenation_has_the_dtype_that_holds_both(order: str) -> None:
    seen: list[str] = []

    def function(tensors: Any) -> Any:
        joined = np.concatenate([tensors[name] for name in order])
        seen.append(joined.dtype.name)
        return {"p": joined}

    stored = {"a": A, "b": HALF}
    assert values_of(traced(function), stored, declared(12)) == [*stored[order[0]], *stored[order[1]]]
    assert seen == ["float32"]


@pytest.mark.parametrize("nest", [Nest(0, "float32", 3, ((4, 1, 1),), 0), Nest(0, "float32", 0, ((2, 1, 4),), 2)])
def test_a_copy_that_leaves_an_array_is_an_error(nest: Nest) -> None:
    with pytest.raises(IndexError, match="outside of an array of 6 values"):
        copy_nest(nest, A, np.zeros(6, np.float32))


def identity(tensors: Any) -> Any:
    return {"p": tensors["a"]}


def test_differences_apply_to_what_a_traced_function_gives() -> None:
    base = traced(identity)
    stored = {"a": A, "b": A + 100}
    doubled = base.with_(after=[hook(double, inputs={"p": "x"}, outputs={"p": "x"})])
    assert values_of(doubled, {"a": A}) == (A * 2).tolist()
    assert (
        values_of(doubled.with_(after=[hook(double, inputs={"p": "x"}, outputs={"p": "x"})]), {"a": A})
        == (A * 4).tolist()
    )
    assert values_of(base.with_(rules={"p": S("b")}, drops={"a": "old"}), stored) == (A + 100).tolist()
    assert values_of(base.with_(drops={"b": "old"}), stored) == A.tolist()


def test_names_of_a_traced_function_are_its_own() -> None:
    with pytest.raises(TypeError, match="a traced function reads tensors by itself"):
        traced(identity).with_(names={"a": "b"})
    with pytest.raises(TypeError, match="a traced function reads tensors by itself"):
        traced(identity).with_(before=[hook(double, inputs={"b": "x"}, outputs={"a": "x"})])


@pytest.mark.parametrize(
    ("changed", "said", "help"),
    [
        (
            {"before": [hook(double, inputs={"w": "x"}, outputs={"ww": "x"})]},
            "which no rule reads",
            "did you mean `w`?",
        ),
        (
            {"after": [hook(double, inputs={"p": "x"}, outputs={"pp": "x"})]},
            "and the graph has no such parameter",
            "`p`",
        ),
    ],
)
def test_a_hook_that_nobody_reads(changed: Any, said: str, help: str) -> None:
    long = {"w": "layers.weight", "ww": "layers.wieght", "p": "head.weight", "pp": "head.wieght"}
    (side, (given,)), *_ = changed.items()
    inputs, outputs = ({long[name]: axes for name, axes in table.items()} for table in (given.inputs, given.outputs))
    adapter = Adapter("a")
    adapter["head.weight"] = S("layers.weight")
    renamed = replace(given, inputs=inputs, outputs=outputs, dtypes=dict.fromkeys(outputs, "float32"))
    adapter = adapter.with_(**{side: [renamed]})
    plan, _ = planned(adapter, {"layers.weight": A}, declared(6, "float32", "head.weight"))
    problem = next(problem for problem in plan.problems if problem.code == "BU153")
    assert said in problem.message
    assert problem.help == f"did you mean `{long[help.split('`')[1]]}`?"
    assert problem.rule
    assert problem.rule.site.file == __file__


def test_a_hook_whose_result_has_the_prefix() -> None:
    adapter = Adapter("a", prefix="model.")
    adapter["head.weight"] = S("layers.weight")
    adapter = adapter.with_(before=[hook(lambda w: w, inputs={"w": "x"}, outputs={"model.layers.weight": "x"})])
    plan, _ = planned(adapter, {"model.layers.weight": A}, declared(6, "float32", "head.weight"))
    (problem,) = (problem for problem in plan.problems if problem.code == "BU153")
    assert problem.help == "rules omit the prefix `model.`: write `layers.weight`"


def test_a_hook_is_used_when_one_of_its_results_is() -> None:
    halves = hook(lambda w: (w, w), inputs={"w": "x"}, outputs={"p": "x", "bias": "x"})
    assert values_of(plain("p").with_(before=[halves]), {"w": A}) == A.tolist()
    pair = hook(lambda w: (w, w), inputs={"p": "x"}, outputs={"p": "x", "bias": "x"})
    assert values_of(plain().with_(after=[pair]), {"w": A}) == A.tolist()


@pytest.mark.parametrize("side", ["before", "after"])
def test_two_hooks_give_one_name(side: Any) -> None:
    twice = [hook(double, inputs={"p": "x"}, outputs={"p": "x"}) for _ in range(2)]
    with pytest.raises(ValueError, match="two hooks have the result `p`"):
        plain("p").with_(**{side: twice})


TWO = {"p": "x", "q": "x"}


@pytest.mark.parametrize(
    ("run", "gives", "said"),
    [
        (lambda w: None, {"p": "x"}, "returned None; its rule declares float32 [6]"),
        (lambda w: w.astype("float64"), {"p": "x"}, "returned float64 [6]; its rule declares float32 [6]"),
        (lambda w: (w, w), {"p": "x"}, "returned a tuple; its rule declares float32 [6]"),
        (lambda w: None, TWO, "returned None; its rule declares a tuple of 2 arrays"),
        (lambda w: w[0], TWO, "returned one result; its rule declares a tuple of 2 arrays"),
        (lambda w: (w, w.astype("float16")), TWO, "returned float16 [6]; its rule declares float32 [6]"),
        (lambda w: (w, None), TWO, "returned None; its rule declares float32 [6]"),
    ],
)
def test_what_a_hook_gives_is_checked(run: Any, gives: Any, said: str) -> None:
    adapter = plain("p")
    adapter["q"] = S("q")
    adapter = adapter.with_(before=[hook(run, inputs={"w": "x"}, outputs=gives)])
    _, run_plan = planned(adapter, {"w": A}, declared(6, "float32", *gives))
    with pytest.raises(BringupError) as caught:
        run_plan()
    (finding,) = caught.value.findings
    assert (finding.code, said in finding.message) == ("BU116", True)
    assert finding.where
    assert finding.where.file == __file__


def test_the_only_result_may_be_a_tuple_of_one() -> None:
    alone = hook(lambda w: (w * 2,), inputs={"w": "x"}, outputs={"p": "x"})
    assert values_of(plain("p").with_(before=[alone]), {"w": A}) == (A * 2).tolist()


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda tensors: None, "returns None, not its parameters"),
        (lambda tensors: A, "returns a ndarray, not its parameters"),
        (lambda tensors: {"p": A}, "returns a ndarray for `p`, not a tensor that it read"),
    ],
)
def test_what_a_traced_function_gives_is_checked(function: Any, said: str) -> None:
    with pytest.raises(BringupError) as caught:
        planned(traced(function), {"a": A}, declared())
    (finding,) = caught.value.findings
    assert (finding.code, said in finding.message) == ("BU004", True)
    assert finding.where
    assert finding.where.file == __file__


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda a: compute(np.add, a, A, shape=(6,)), "not a ndarray with them"),
        (lambda a: a.view(np.complex64), "no view as"),
        (lambda a: a.view(">i4"), "no view as"),
    ],
)
def test_what_has_no_meaning_in_a_trace_says_so(function: Any, said: str) -> None:
    with pytest.raises(TypeError, match=said):
        planned(traced(lambda tensors: {"p": function(tensors["a"])}), {"a": A}, declared())


def test_a_view_by_the_name_that_numpy_has() -> None:
    assert values_of(traced(lambda tensors: {"p": tensors["a"].view("<i4").view("<f4")}), {"a": A}) == A.tolist()


def test_rules_in_the_names_of_the_checkpoint() -> None:
    words = replace(declared()["p"], checkpoint_names=(("weight", "qweight"),))
    signature = Signature({"p": words})
    assert values_of(plain("w.weight"), {"w.qweight": A}, signature) == A.tolist()
    ruled = plain("w.weight").with_(rules={"p": S("v.weight")})
    assert values_of(ruled, {"v.weight": A}, signature) == A.tolist()
    assert values_of(ruled.with_(names={"v": "u"}), {"u.weight": A}, signature) == A.tolist()
    after = ruled.with_(after=[hook(double, inputs={"p": "x"}, outputs={"p": "x"})])
    assert values_of(after, {"v.weight": A}, signature) == (A * 2).tolist()


def test_what_a_drop_requires_is_translated() -> None:
    base = plain()
    base.drop("old.{x:**}", why="x", requires="flag")
    base.drop("flag", why="marks old tensors")
    renamed = base.with_(names={"flag": "mark"})
    assert values_of(renamed, {"w": A, "mark": A, "old.k": A}) == A.tolist()
