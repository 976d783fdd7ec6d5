"""Tensors that go by more than one name, or that serve in another's place; rules and drops for some layers only."""

from __future__ import annotations

import numpy as np
import pytest

from bringup.adapters.algebra.expr import S
from bringup.adapters.algebra.per_layer import where
from bringup.adapters.apply.materialise import check_ties, materialise
from bringup.adapters.checkpoints.memory import dict_checkpoint
from bringup.adapters.planning.adapter import Adapter, either, tied
from bringup.adapters.planning.plan import Plan, make_plan
from bringup.adapters.planning.rules import Tied
from bringup.graphs.core.axes import parse
from bringup.graphs.core.signature import Declared, Signature

SIZES = {"m": 3, "n": 2}


def declared(*names: str) -> Signature:
    axes = tuple(axis.sized(SIZES) for axis in parse("m n"))
    return Signature({name: Declared(name, axes, "float32", None, None) for name in names})


def array(first: int) -> np.ndarray:
    return np.arange(first, first + 6, dtype=np.float32).reshape(3, 2)


def planned(
    adapter: Adapter, names: tuple[str, ...], tensors: dict[str, np.ndarray]
) -> tuple[Plan, dict[str, np.ndarray]]:
    checkpoint = dict_checkpoint(tensors, {})
    plan = make_plan(declared(*names), adapter, checkpoint.headers)
    arrays = {} if plan.problems else materialise(plan, checkpoint)
    return plan, arrays if plan.problems else arrays | {"ties": np.array(check_ties(plan, checkpoint))}


@pytest.mark.parametrize("prefix", ["", "model."])
def test_a_name_that_may_stand_inside_of_others(prefix: str) -> None:
    table = Adapter("t", prefix="model.", infix="block")
    table["model.a"] = S("layers.7.a", "m n")
    table["model.b"] = S("layers.7.b", "m n")
    tensors = {f"{prefix}layers.7.block.a": array(1), f"{prefix}layers.7.b": array(2)}
    plan, arrays = planned(table, ("model.a", "model.b"), tensors)
    assert plan.required.keys() == tensors.keys()
    assert (arrays["model.a"] == array(1)).all()
    assert (arrays["model.b"] == array(2)).all()

    both = tensors | {f"{prefix}layers.7.a": array(3)}
    plan, arrays = planned(table, ("model.a", "model.b"), both)
    assert (arrays["model.a"] == array(3)).all()
    assert both.keys() - plan.required.keys() - plan.dropped.keys() == {f"{prefix}layers.7.block.a"}

    table.drop("layers.7.{x}", why="dropped by the name that rules use")
    plan, _ = planned(table, ("model.a",), tensors | {f"{prefix}layers.7.block.c": array(4)})
    assert plan.dropped.keys() == {f"{prefix}layers.7.b", f"{prefix}layers.7.block.c"}


@pytest.mark.parametrize(("make", "ties"), [(either, []), (lambda own, other: tied(own, other, when=True), ["head"])])
def test_of_two_that_may_serve_the_first(make, ties: list[str]) -> None:
    """A tie is compared with what it is tied to; what only serves may be anything."""
    table = Adapter("t", prefix="model.")
    table["head"] = make(S("layers.7.head", "m n"), S("head", "m n"))
    assert isinstance(table.rules[0].expr, Tied)
    own, shared = {"model.layers.7.head": array(1)}, {"head": array(2)}
    for tensors, first in ((own | shared, 1), (own, 1), (shared, 2)):
        plan, arrays = planned(table, ("head",), tensors)
        assert (arrays["head"] == array(first)).all()
        assert plan.required.keys() == {next(iter(tensors))}
        assert arrays["ties"].tolist() == (ties if len(tensors) == 2 else [])


def test_what_is_absent_is_reported_by_its_expected_name() -> None:
    """`lm_head` stands outside the prefix, and a layer's own head does not."""
    table = Adapter("t", prefix="model.")
    table["model.a"] = S("layers.7.a", "m n")
    table["lm_head"] = either(S("layers.7.head", "m n"), S("lm_head", "m n"))
    plan, _ = planned(table, ("model.a", "lm_head"), {"model.other": array(1)})
    assert [problem.sources for problem in plan.problems] == [("model.layers.7.a",), ("lm_head",)]


def test_a_rule_that_is_another_one_for_some_layers() -> None:
    table = Adapter("t")
    there, elsewhere = S("layers.{L}.turned", "n m"), S("layers.{L}.plain", "m n")
    table["layers.{L}.a"] = where("L", {1, 11}, there, elsewhere)
    names, tensors = dict[str, int](), dict[str, np.ndarray]()
    for number in (0, 1, 2, 11, 12):
        names[f"layers.{number}.a"] = number
        turned = number in (1, 11)
        tensors[f"layers.{number}.{'turned' if turned else 'plain'}"] = (
            array(number).T.copy() if turned else array(number)
        )
    plan, arrays = planned(table, tuple(names), tensors)
    assert plan.required.keys() == tensors.keys()
    for name, number in names.items():
        assert (arrays[name] == array(number)).all()


@pytest.mark.parametrize("prefix", ["", "model."])
def test_a_drop_that_requires_another_tensor(prefix: str) -> None:
    table = Adapter("t", prefix="model.")
    table["model.a"] = S("a", "m n")
    table.drop("layers.{L}.{x}", why="a draft's", requires="layers.{L}.mark")
    tensors = {"a": array(0)} | {f"layers.{number}.b": array(0) for number in (1, 2, 12)} | {"layers.2.mark": array(0)}
    plan, _ = planned(table, ("model.a",), {prefix + name: values for name, values in tensors.items()})
    assert plan.dropped.keys() == {f"{prefix}layers.2.b", f"{prefix}layers.2.mark"}
    assert plan.problems == []
