"""What is computed is part of a plan's digest and of its lock: settings, inputs and functions."""

import numpy as np
import pytest

from bringup.adapters import Adapter, S, fn, hook, make_plan, scale, shift
from bringup.adapters.algebra.expr import Expr
from bringup.compile.bundle.contents import Functions, movement, plan_hash
from bringup.graphs.core.axes import sized
from bringup.graphs.core.signature import Declared, Signature
from bringup.spec import TensorInfo


def digest(expr: Expr | Adapter) -> str:
    signature = Signature({"p": Declared("p", sized("x", {"x": 6}), "float32")})
    adapter = expr if isinstance(expr, Adapter) else Adapter("a")
    if isinstance(expr, Expr):
        adapter["p"] = expr
    headers = {name: TensorInfo(name, "float32", (6,)) for name in "ab"}
    plan = make_plan(signature, adapter, headers)
    assert not plan.problems
    found, locked = plan_hash(plan), movement(plan.entries["p"], Functions())
    assert found == plan_hash(plan)
    assert locked == movement(plan.entries["p"], Functions())
    return f"{found} {locked}"


def times(factor: float) -> Expr:
    def run(array: np.ndarray) -> np.ndarray:
        return array * np.float32(factor)

    return fn(run, S("a"), axes="x", x=6, dtype="float32")


def named(array: np.ndarray) -> np.ndarray:
    return array * np.float32(2)


def same_name() -> Expr:
    def named(array: np.ndarray) -> np.ndarray:
        return array * np.float32(3)

    return fn(named, S("a"), axes="x", x=6, dtype="float32")


def double(array: np.ndarray) -> np.ndarray:
    return array * 2


def doubled(expr: str) -> Adapter:
    base = Adapter("b")
    base["p"] = S(expr)
    return base.with_(after=[hook(double, inputs={"p": "x"}, outputs={"p": "x"})])


def test_equal_adapters_have_one_digest():
    assert digest(scale(S("a"), 1.5)) == digest(scale(S("a"), 1.5))
    assert digest(times(1.5)) == digest(times(1.5))
    assert digest(doubled("a")) == digest(doubled("a"))


@pytest.mark.parametrize(
    "pair",
    [
        pytest.param((scale(S("a"), 1.0000001), scale(S("a"), 1.0000002)), id="setting of equal %g text"),
        pytest.param((shift(S("a"), -1.0), shift(S("a"), -1.0000001)), id="shift"),
        pytest.param((times(1.5), times(1.25)), id="closure"),
        pytest.param((fn(named, S("a"), axes="x", x=6, dtype="float32"), same_name()), id="body of equal names"),
        pytest.param((scale(scale(S("a"), 2), 4), scale(scale(S("a"), 3), 4)), id="input that is computed"),
        pytest.param(
            (scale(S("a").split(0, 3, 3)[0].pad(0, 0, 3), 2), scale(S("a").split(0, 3, 3)[1].pad(0, 0, 3), 2)),
            id="input that is moved",
        ),
        pytest.param((doubled("a"), doubled("b")), id="input of a hook"),
    ],
)
def test_what_is_computed_otherwise_has_another_digest(pair: tuple[Expr | Adapter, Expr | Adapter]):
    assert digest(pair[0]) != digest(pair[1])
