"""The target `schedule`: the plan of launches that kernels are written for, each run by torch in planned memory."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from bringup.adapters.apply.fuse import fused
from bringup.compile.targets.target import Option, Options, Target
from bringup.diagnostics import fail
from bringup.graphs.core.options import ACTIVATIONS
from bringup.system.atomic import write_file

if TYPE_CHECKING:
    import numpy as np
    from torch.export import ExportedProgram

    from bringup.adapters.planning.adapter import Adapter
    from bringup.compile.program.program import Executor, Function, Interface
    from bringup.compile.program.trace_cached import EncodedProgram
    from bringup.compile.schedule.graph.op_graph import OpGraph
    from bringup.compile.schedule.schedule import Schedule
    from bringup.compile.targets.module_store import ModuleStore
    from bringup.graphs.core.graph import Graph

SCHEDULE = "schedule.json"
# Every operation that may have a kernel: each remains one node of the plan.
OPAQUE = frozenset(
    [
        "attention",
        "cached_rows",
        "causal_conv",
        "dequantise",
        "expert_linear",
        "expert_lora_expand",
        "expert_lora_shrink",
        "fp8_experts",
        "fp8_linear",
        "from_blocks",
        "gated_delta_rule",
        "gelu",
        "gelu_tanh",
        "index_scores",
        "keep_best_groups",
        "latent_attention",
        "layer_norm",
        "linear",
        "lora_expand",
        "lora_lookup",
        "lora_shrink",
        "marked_keys",
        "quant_embedding",
        "quant_experts",
        "quant_linear",
        "relu",
        "rms_norm",
        "rope",
        "row_attention",
        "rows_of_experts",
        "selected_positions",
        "silu",
        "slots_to_blocks",
        "state_space",
        "to_blocks",
        "to_fp8",
        "top_experts",
        "top_keys",
        "write_cache",
    ]
)


class ScheduleTarget(Target):
    """A bundle has `schedule.json`: the functions after all passes, and the offset of each temporary in one arena."""

    name = "schedule"
    summary = "a list of launches and a memory plan, run by torch on the CPU: the plan that kernels are written for"
    requires = runs_with = ("torch",)
    options = {  # noqa: RUF012  a Mapping of the protocol
        "passes": Option(default="", help="passes to leave out: -NAME,-NAME (`--dump-dir` shows what each does)"),
    }
    phases = ("schedule",)
    supports_loras = True
    opaque = OPAQUE
    fixed_sizes = True
    supports_packed = True
    activations = ACTIVATIONS

    def layout(self, graph: Graph) -> Adapter:
        """Matrices that read the same activations are concatenated."""
        return fused()

    def encode(self, function: Function, exported: ExportedProgram) -> bytes:
        from bringup.compile.schedule.codec import graph_to_json
        from bringup.compile.schedule.graph.from_export import op_graph
        from bringup.compile.schedule.reference_ops import check_operators

        graph = op_graph(function, exported)
        self.check(graph)
        try:
            check_operators(graph.nodes())
        except ValueError as error:
            raise fail("BU403", f"the program cannot be scheduled: {error}", help="use another target") from error
        return json.dumps(graph_to_json(graph)).encode()

    def check(self, graph: OpGraph) -> None:
        """Raises BU504 for an operation that the target has no kernel for."""

    @contextmanager
    def lower(
        self, program: EncodedProgram, folder: Path, options: Options, store: ModuleStore, dump_dir: Path | None
    ) -> Generator[Callable[[], str]]:
        """A dump has each function before the first pass and after each, as `2-schedule.FUNCTION.NN-PASS.txt`."""
        schedule = schedule_of(program, options, dump_dir)

        def finish() -> str:
            write_schedule(schedule, folder)
            return summary_of(schedule)

        yield finish

    def load(
        self, folder: Path, interface: Interface, weights: Mapping[str, np.ndarray], device: str | None
    ) -> Executor:
        return reference_executor(read_schedule(folder, interface), interface, weights)

    def emit(self, phase: str, program: EncodedProgram, options: Options, dump_dir: Path | None) -> bytes:
        from bringup.compile.schedule.text import text_of

        return text_of(schedule_of(program, options, dump_dir), program.interface).encode()

    def devices(self) -> Sequence[str]:
        return ("reference",)


SCHEDULE_TARGET = ScheduleTarget()


def write_schedule(schedule: Schedule, folder: Path) -> None:
    """Writes the file that `read_schedule` reads."""
    from bringup.compile.schedule.codec import schedule_to_json

    write_file(folder / SCHEDULE, json.dumps(schedule_to_json(schedule)).encode())


def read_schedule(folder: Path, interface: Interface) -> Schedule:
    """The schedule of a bundle. Raises ValueError for one that `lower` did not write."""
    from bringup.compile.schedule.codec import schedule_from_json
    from bringup.compile.schedule.validate import validate

    try:
        schedule = schedule_from_json(json.loads((folder / SCHEDULE).read_text("utf-8")))
        validate(schedule, interface)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"`{SCHEDULE}` was not written by `bringup compile`: {error}") from error
    return schedule


def reference_executor(schedule: Schedule, interface: Interface, weights: Mapping[str, np.ndarray]) -> Executor:
    """The executor that runs the launches by torch. Raises ValueError for operations that it does not support."""
    from bringup.compile.schedule.reference import ReferenceExecutor
    from bringup.compile.schedule.reference_ops import check_operators

    check_operators(node for graph in schedule.graphs.values() for node in graph.nodes())
    return ReferenceExecutor(schedule, interface, weights)


def summary_of(schedule: Schedule) -> str:
    """A few words for a progress line."""
    launches = ", ".join(f"{name} {len(list(schedule.launches(name)))}" for name in schedule.entries)
    return f"launches: {launches}; {schedule.nbytes / 1e6:.1f} MB of temporaries"


def schedule_of(
    program: EncodedProgram, options: Options, dump_dir: Path | None, split: Callable[[OpGraph], OpGraph] | None = None
) -> Schedule:
    """The schedule of a program: its functions after the passes, and after `split`, which splits large groups."""
    from bringup.compile.schedule.codec import graph_from_json
    from bringup.compile.schedule.pass_list import run_passes, selected
    from bringup.compile.schedule.schedule import scheduled
    from bringup.compile.schedule.text import graph_text

    passes, reuse = selected(options["passes"])
    graphs: dict[str, OpGraph] = {}
    for name, code in program.code.items():
        seen: list[str] = []

        def watch(done: str, graph: OpGraph, name: str = name, seen: list[str] = seen) -> None:
            if dump_dir:
                write_file(dump_dir / f"2-schedule.{name}.{len(seen):02}-{done}.txt", graph_text(graph).encode())
            seen.append(done)

        graphs[name] = run_passes(graph_from_json(json.loads(code)), passes, watch)
        if split is not None:
            graphs[name] = split(graphs[name])
            watch("split", graphs[name])
    return scheduled(program.interface, graphs, reuse=reuse)
