"""Which results take the place of what their launch reads."""

from __future__ import annotations

import numpy as np

from bringup.compile.program.program import Call
from bringup.compile.schedule.graph.op_graph import View, whole
from bringup.compile.schedule.in_place import in_place
from bringup.compile.schedule.liveness import GIVEN, liveness
from tests.kernels.graphs import Function

FLOAT, SHAPE = "float32", (3, 2, 8)


def places(f: Function, *results: str) -> list[tuple[str, str]]:
    graph = f.graph(*results)
    return list(in_place(graph, graph.groups[0]))


def test_a_residual_sum_takes_the_place_of_what_it_adds_to() -> None:
    f = Function()
    s, x = f.given("s", (4, 8), kind="value"), f.given("x", (4, 6), kind="value")
    y = f.node("bringup.linear.default", {"y": ((4, 8), FLOAT)}, x=x, weight=f.given("w", (8, 6)), bias=None)
    f.node("aten.add.Tensor", {"o": ((4, 8), FLOAT)}, self=y, other=s, alpha=1)
    assert places(f, "o") == [("o", "s")]


def test_what_programs_read_at_other_places_stays() -> None:
    """A gate by the first head: programs of other heads read it again."""
    f = Function()
    s = f.given("s", SHAPE, kind="value")
    f.node("aten.sigmoid.default", {"a": (SHAPE, FLOAT)}, self=s)
    f.node("aten.mul.Tensor", {"o": (SHAPE, FLOAT)}, self=s, other=View("a", (3, 1, 8), (16, 8, 1), 0))
    assert places(f, "o") == []
    g = Function()
    s = g.given("s", SHAPE, kind="value")
    g.node("aten.mul.Tensor", {"o": (SHAPE, FLOAT)}, self=s, other=View("s", (3, 1, 8), (16, 8, 1), 0))
    assert places(g, "o") == []


def test_what_two_results_are_computed_of_stays() -> None:
    f = Function()
    s = f.given("s", SHAPE, kind="value")
    f.node("aten.mul.Tensor", {"p": (SHAPE, FLOAT)}, self=s, other=2.0)
    f.node("aten.softmax.int", {"u": (SHAPE, FLOAT)}, self=s, dim=-1, dtype=None)
    f.node("aten.add.Tensor", {"r": (SHAPE, FLOAT)}, self=whole(f.buffers["u"]), other=s, alpha=1)
    assert places(f, "p", "r") == []


def test_what_is_computed_again_for_another_result_stays() -> None:
    """The norm reads a whole row of `o`, which its programs compute of `s`."""
    f = Function()
    s, t = f.given("s", (4, 8), kind="value"), f.given("t", (4, 8), kind="value")
    o = f.node("aten.add.Tensor", {"o": ((4, 8), FLOAT)}, self=s, other=t, alpha=1)
    f.node("aten.softmax.int", {"u": ((4, 8), FLOAT)}, self=o, dim=-1, dtype=None)
    assert places(f, "o", "u") == []


def test_a_value_that_is_given_twice_stays() -> None:
    """One memory is both values of the second call: read at its own place, and as the first row for all."""
    first, f = Function(), Function()
    given = first.array("value:0", np.zeros((4, 8), np.float32), FLOAT, "value")
    first.node("aten.mul.Tensor", {"o": ((4, 8), FLOAT)}, self=given, other=2.0)
    s, t = (f.array(f"value:{n}", np.zeros((4, 8), np.float32), FLOAT, "value") for n in (0, 1))
    row = View(t.buffer, (1, 8), (8, 1), 0)
    f.node("aten.sub.Tensor", {"o": ((4, 8), FLOAT)}, self=s, other=row, alpha=1)
    graphs = {"first": first.graph("o"), "f": f.graph("o")}
    owners = [(GIVEN, "x"), (0, "o"), (0, "o"), (1, "o")]
    for inputs, over in (((1, 1), {}), ((1, 0), {(1, "o"): (0, "o")})):
        calls = [
            Call(function="first", prefix="", inputs=(0,)),
            Call(function="f", prefix="", inputs=inputs),
        ]
        assert liveness(calls, graphs, owners, [(1, "o")], reuse=True).over == over
