"""The stages of a graph in the form of a target, from the cache or traced."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from bringup.compile.cache.source_digest import engine_read_once
from bringup.compile.cache.store import Store
from bringup.compile.cache.text_digests import digest
from bringup.compile.program.assemble import (
    Stage,
    Traced,
    check_carried,
    interface_of,
    spelled_value,
    tensors_of,
    trace_entry,
)
from bringup.compile.program.export_options import Layout
from bringup.compile.program.physical import buffers_of
from bringup.compile.program.program import Entry, EntryPoint, Function, Interface, Value
from bringup.compile.program.stage_key import spelled_function, stage_inputs, stage_sources
from bringup.diagnostics import BringupError, fail
from bringup.graphs.core.graph import Graph
from bringup.graphs.ops.lowering import INLINED, OpLowering
from bringup.system import gc_pause
from bringup.system.forked import forked

if TYPE_CHECKING:
    from torch.export import ExportedProgram

    from bringup.adapters.planning.adapter import Adapter
    from bringup.compile.program.trace import Tracer

Part = tuple[Entry, list[Traced[bytes]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCodec:
    """How a traced stage is encoded and cached: `encode` returns the bytes that a target's `lower` expects.

    `files` are the source files of the target, `tools` the versions of the distributions that it requires. `key` is
    everything else that its results depend on, whatever its options; None if that is unknown. `ops` defines how calls
    of ops are traced, `layout` the physical buffers of a graph's parameters. `fixed_sizes` is that of the target.
    `prepare` does the work that `encode` needs once in a process; it is called before stages are traced in several
    processes.
    """

    name: str
    encode: Callable[[Function, ExportedProgram], bytes]
    files: frozenset[Path] = frozenset()
    tools: str = ""
    key: Mapping[str, str] | None = field(default_factory=dict[str, str])
    ops: OpLowering = INLINED
    layout: Callable[[Graph], Adapter | None] = lambda graph: None
    fixed_sizes: bool = False
    prepare: Callable[[], None] = lambda: None


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedProgram:
    """A program whose stages are encoded; `num_cached` is the number of those from the cache."""

    interface: Interface
    code: Mapping[str, bytes]
    num_cached: int

    @property
    def summary(self) -> str:
        """`15 functions`, `15 functions, 10 of them from the cache`."""
        count = f"{len(self.code)} functions"
        if self.num_cached == len(self.code):
            return f"{count}, all from the cache"
        return f"{count}, {self.num_cached} of them from the cache" if self.num_cached else count


def encoded_program(graph: Graph, layout: Layout, codec: StageCodec, store: Store) -> EncodedProgram:
    """The program of a graph. torch is imported only if a stage must be traced."""
    source = _Source(graph, layout, codec, store)
    with engine_read_once():
        parts = {entry: source.part(entry) for entry in layout.entries}
    if missing := [entry for entry, part in parts.items() if part is None]:
        with gc_pause.gc_paused():
            source.trace(missing)
        parts |= {entry: source.traced_part(entry) for entry in missing}
    whole = [part for part in parts.values() if part]
    stages = [stage for _, traced in whole for stage in traced]
    return EncodedProgram(
        interface=interface_of(layout, whole, tensors_of(graph, layout, source.buffers)),
        code={stage.function.name: stage.code for stage in stages},
        num_cached=sum(stage.found for stage in stages),
    )


class _Missing(Exception):
    """A stage that is not in the cache."""

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage.name)
        self.stage = stage


class _Source:
    """The stages of a graph, from the cache or traced."""

    source_lines = False  # no target's code contains them; `--emit program` and bisection trace with them

    def __init__(self, graph: Graph, layout: Layout, codec: StageCodec, store: Store) -> None:
        self.graph, self.layout, self.codec, self.store = graph, layout, codec, store
        self.buffers = buffers_of(graph, codec.layout(graph))
        self.known: dict[Stage, Traced[bytes]] = {}
        self._looked_up: dict[Stage, dict[str, str] | None] = {}  # the inputs of stages, before any is traced
        self._unsaved: list[tuple[Stage, dict[str, str], Traced[bytes], float]] = []  # of this process, with seconds

    def part(self, entry: EntryPoint) -> Part | None:
        """One entry point and its stages; None if one is neither cached nor traced yet."""
        try:
            return trace_entry(self.layout, entry, self._stage)
        except _Missing:
            return None

    def traced_part(self, entry: EntryPoint) -> Part:
        """The same after `trace`. Raises BU304 if the trace of a stage has other results than its run."""
        try:
            return trace_entry(self.layout, entry, self._stage)
        except _Missing as missing:
            name, values = missing.stage.name, missing.stage.values
            expected = next(stage.values for stage in self.known if stage.name == name)
            raise fail(
                "BU304",
                f"the values for `{name}` are {_listed(values)} in a trace, and {_listed(expected)} in a run",
                help="return values of the same shapes and dtypes, whether `torch.export` traces or not",
            ) from None

    def trace(self, entries: Sequence[EntryPoint]) -> None:
        """Traces missing stages on all processors. Work that every stage needs is done before forking."""
        from bringup.compile.program.trace import tracer_of

        tracer = tracer_of(
            self.graph, self.layout, self.codec.ops, self.buffers,
            source_lines=self.source_lines, fixed_sizes=self.codec.fixed_sizes,
        )  # fmt: skip
        tracer.prepare()
        self.codec.prepare()
        with engine_read_once():
            missing = [stage for entry in entries for stage in self._missing(entry, tracer)]
        missing.sort(key=lambda stage: stage.part != "layer")  # layers take the longest
        traced = forked(lambda stage: self._traced(stage, tracer), missing, self._save)
        self.known |= dict(zip(missing, traced, strict=True))

    def _missing(self, entry: EntryPoint, tracer: Tracer) -> list[Stage]:
        """The stages of an entry point that are not in the cache. Their results are known before they are traced.

        A layer's results are assumed to equal its carried inputs; `_traced` checks that.
        """
        missing: list[Stage] = []

        def found(stage: Stage) -> Traced[bytes]:
            try:
                return self._stage(stage)
            except _Missing:
                missing.append(stage)
            carried = stage.values[: self.layout.carried]
            results = tracer.results(stage) if stage.part == "prologue" else carried if stage.part == "layer" else _ONE
            return Traced(function=_expected(stage, results), code=b"")

        trace_entry(self.layout, entry, found)
        return missing

    def _inputs(self, stage: Stage) -> dict[str, str] | None:
        codec = self.codec
        found = stage_inputs(self.graph, self.layout, stage, codec.name, codec.files)
        functions = {name: spelled_function(function) for name, function in codec.ops.implementations.items()}
        if found is None or codec.key is None or None in functions.values():
            return None
        ops = {"opaque": sorted(codec.ops.opaque), "implementations": sorted(functions.items())}
        buffers = self.buffers.below(f"{stage.path}." if stage.path else "")
        own = {f"target key {name}": value for name, value in codec.key.items()}
        own["fixed sizes"] = str(codec.fixed_sizes)
        return {**found, "target tools": codec.tools, "ops": str(ops), "buffers": digest(str(buffers)), **own}

    def _first_inputs(self, stage: Stage) -> dict[str, str] | None:
        """Of the moment in which the stage was looked up first."""
        if stage not in self._looked_up:
            self._looked_up[stage] = self._inputs(stage)
        return self._looked_up[stage]

    def _stage(self, stage: Stage) -> Traced[bytes]:
        """A stage that is traced or in the cache. Raises _Missing for another."""
        if stage not in self.known:
            inputs = self._first_inputs(stage)
            cached = self.store.get("stage", inputs) if inputs else None
            if cached is None:
                raise _Missing(stage)
            self.known[stage] = _unpacked(cached)
        return self.known[stage]

    def _traced(self, stage: Stage, tracer: Tracer) -> Traced[bytes]:
        inputs, start = self._first_inputs(stage), time.perf_counter()
        exported = tracer(stage)
        if stage.part == "layer":  # before an error of the epilogue, whose inputs are the layers' results
            carried = stage.values[: self.layout.carried]
            check_carried(self.layout, stage.path, exported.function.results, carried)
        try:
            code = self.codec.encode(exported.function, exported.code)
        except BringupError:
            self._explain(stage)
            raise
        traced = Traced(function=exported.function, code=code)
        if inputs:
            self._unsaved.append((stage, inputs, traced, time.perf_counter() - start))
        return traced

    def _save(self) -> None:
        """Stores what this process has traced, unless a source file has changed since. It looks at them once."""
        with engine_read_once():
            for stage, inputs, traced, seconds in self._unsaved:
                if self._are_unchanged(stage, inputs):
                    what = f"{stage.name} of {type(self.graph).__name__}, {self.codec.name}"
                    self.store.put("stage", inputs, _packed(traced), what=what, seconds=seconds)
        self._unsaved.clear()

    def _are_unchanged(self, stage: Stage, inputs: Mapping[str, str]) -> bool:
        """Whether no source file has changed since the stage was looked up. Nothing else of its inputs can change."""
        sources = stage_sources(self.graph, stage, self.codec.files)
        return sources is not None and {**inputs, **sources} == inputs

    def _explain(self, stage: Stage) -> None:
        """Encodes a trace with source lines, so that its error contains the line of the model's source."""
        from bringup.compile.program.trace import tracer_of

        if not self.source_lines:
            exported = tracer_of(self.graph, self.layout, self.codec.ops, self.buffers)(stage)
            self.codec.encode(exported.function, exported.code)


_ONE: tuple[Value, ...] = (((), ""),)


def _expected(stage: Stage, results: tuple[Value, ...]) -> Function:
    return Function(name=stage.name, weights=(), states=(), values=stage.values, results=results, updates=())


def _listed(values: Sequence[Value]) -> str:
    return ", ".join(map(spelled_value, values))


def _packed(traced: Traced[bytes]) -> bytes:
    """The cached form of a stage: a line of JSON, then the code."""
    return json.dumps(traced.function.to_json()).encode() + b"\n" + traced.code


def _unpacked(data: bytes) -> Traced[bytes]:
    head, _, code = data.partition(b"\n")
    return Traced(
        function=Function.from_json(json.loads(head)),
        code=code,
        found=True,
    )
