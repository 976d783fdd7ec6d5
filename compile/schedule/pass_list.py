"""The passes in order, and the setting that disables some."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from bringup.compile.schedule.graph.op_graph import OpGraph
from bringup.compile.schedule.passes.fuse_elements import FuseElements
from bringup.compile.schedule.passes.fuse_epilogues import FuseEpilogues
from bringup.compile.schedule.passes.fuse_experts import FuseExperts
from bringup.compile.schedule.passes.fuse_fp8 import FuseFp8
from bringup.compile.schedule.passes.fuse_lookups import FuseLookups
from bringup.compile.schedule.passes.fuse_norms import FuseNorms
from bringup.compile.schedule.passes.fuse_rotary import FuseRotary
from bringup.compile.schedule.passes.fuse_rows import FuseRows
from bringup.compile.schedule.passes.share_fp8 import ShareFp8
from bringup.diagnostics import did_you_mean, fail


class Pass(Protocol):
    """Transforms a function into an equivalent one. `passes=-NAME` disables the pass with this `name`."""

    @property
    def name(self) -> str:
        """The name in `passes=-NAME`."""
        ...

    def __call__(self, graph: OpGraph) -> OpGraph: ...


Watch = Callable[[str, OpGraph], None]
PASSES: tuple[Pass, ...] = (
    ShareFp8(),
    FuseElements(),
    FuseLookups(),
    FuseRows(),
    FuseEpilogues(),
    FuseFp8(),
    FuseExperts(),
    FuseRotary(),
    FuseNorms(),
)
REUSE = "reuse-memory"  # an option of the memory plan: temporaries share memory


def selected(setting: str) -> tuple[list[Pass], bool]:
    """The passes of a setting such as `-fuse-norms,-reuse-memory` ("" for all), and whether memory is reused.

    Raises BU024 for an unknown name.
    """
    out = [item.strip() for item in setting.split(",") if item.strip()]
    names = [*(each.name for each in PASSES), REUSE]
    for item in out:
        if not item.startswith("-") or item[1:] not in names:
            hint = did_you_mean(item.removeprefix("-"), names) or f"the passes are {', '.join(names)}"
            raise fail("BU024", f"invalid value `{item}` for `passes`", help=f"write -NAME for each to disable; {hint}")
    left_out = {item[1:] for item in out}
    return [each for each in PASSES if each.name not in left_out], REUSE not in left_out


def run_passes(graph: OpGraph, passes: Sequence[Pass], watch: Watch | None = None) -> OpGraph:
    """A function after all passes. `watch(name, graph)` is called before the first pass and after each."""
    if watch:
        watch("before", graph)
    for each in passes:
        graph = each(graph)
        if watch:
            watch(each.name, graph)
    return graph
