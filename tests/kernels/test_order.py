"""A launch whose programs store over what others read, under the observers of `bringup kernels test`."""

from __future__ import annotations

import numpy as np

from bringup.compile.cache.store import default_store
from bringup.compile.gpu.kernel_plan import planned
from bringup.compile.gpu.trial.launches import Given, LaunchRunner
from bringup.compile.kernels.aot import compile_kernels
from bringup.compile.kernels.select.registry import calls_of
from bringup.compile.ptx.watch.order import READ_BEFORE
from bringup.compile.schedule.graph.op_graph import View
from tests.kernels.graphs import Function

FLOAT, SHAPE = "float32", (3, 2, 512)


def test_a_result_over_an_operand_that_other_programs_read_is_found() -> None:
    """Heads times a gate of the first head, planned in place: the second head's program reads the first head too."""
    f = Function()
    s = f.given("s", SHAPE, kind="value")
    f.node("aten.sigmoid.default", {"a": (SHAPE, FLOAT)}, self=s)
    f.node("aten.mul.Tensor", {"o": (SHAPE, FLOAT)}, self=s, other=View("a", (3, 1, 512), (1024, 512, 1), 0))
    graph = f.graph("o")
    (call,) = calls_of(graph, graph.groups[0], "sm_90") or ()
    compiled = compile_kernels([call.kernel], "sm_90", default_store())
    plan = planned("sm_90", {"f": ((call,),)}, compiled)
    runner = LaunchRunner(plan, {plan.kernels[call.kernel].digest: compiled[call.kernel].assembly})
    content = f.arrays["s"].reshape(-1).view(np.uint8)
    for places, found in ((("one", "one"), True), (("one", "other"), False)):
        given = {
            name: Given(content.size, content if name == "s" else None, place)
            for name, place in zip("so", places, strict=True)
        }
        seen, _ = runner.watched([call], given)
        assert any(finding.startswith(READ_BEFORE) for finding in seen.findings) is found, seen.findings
        assert bool(seen.findings) is found
        assert any("depends on the order of blocks" in finding for finding in seen.findings) is found
