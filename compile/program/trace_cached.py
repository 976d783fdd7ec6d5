"""Every stage of a graph in the form that a lowering takes: found in the cache, or traced."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from bringup.compile.cache.store import Store
from bringup.compile.cache.text_digests import digest
from bringup.compile.program.assemble import Stage, Traced, interface_of, tensors_of, trace_entry
from bringup.compile.program.export_options import Layout
from bringup.compile.program.physical import buffers_of
from bringup.compile.program.program import Entry, EntryPoint, Function, Interface
from bringup.compile.program.stage_key import spelled_function, stage_inputs
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
    """How a traced stage is cached: `encode` gives the bytes that a target's `lower` takes.

    `files` are the source files of the target, `tools` the versions of the distributions that it requires. `key`
    is what else decides its results whatever its options, None where that is unknown. `ops` says what becomes of calls
    of ops, `layout` which physical buffers a graph's parameters are in.
    """

    name: str
    encode: Callable[[Function, ExportedProgram], bytes]
    files: frozenset[Path] = frozenset()
    tools: str = ""
    key: Mapping[str, str] | None = field(default_factory=dict[str, str])
    ops: OpLowering = INLINED
    layout: Callable[[Graph], Adapter | None] = lambda graph: None


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedProgram:
    """A program whose stages are bytes; `found` of them were in the cache."""

    interface: Interface
    code: Mapping[str, bytes]
    found: int

    @property
    def summary(self) -> str:
        """`15 functions`, `15 functions, 10 of them from the cache`."""
        count = f"{len(self.code)} functions"
        if self.found == len(self.code):
            return f"{count}, all from the cache"
        return f"{count}, {self.found} of them from the cache" if self.found else count


def encoded_program(graph: Graph, layout: Layout, codec: StageCodec, store: Store) -> EncodedProgram:
    """The program of a graph. torch is imported only when a stage has to be traced."""
    source = _Source(graph, layout, codec, store)
    parts = {entry: source.part(entry) for entry in layout.entries}
    if missing := [entry for entry, part in parts.items() if part is None]:
        with gc_pause.gc_paused():
            source.may_trace()
            parts |= zip(missing, forked(source.part, missing), strict=True)
    whole = [part for part in parts.values() if part]
    stages = [stage for _, traced in whole for stage in traced]
    return EncodedProgram(
        interface=interface_of(layout, whole, tensors_of(graph, layout, source.buffers)),
        code={stage.function.name: stage.code for stage in stages},
        found=sum(stage.found for stage in stages),
    )


class _Missing(Exception):
    """A stage that is not in the cache."""


class _Source:
    """Where stages come from."""

    def __init__(self, graph: Graph, layout: Layout, codec: StageCodec, store: Store) -> None:
        self.graph, self.layout, self.codec, self.store = graph, layout, codec, store
        self.buffers = buffers_of(graph, codec.layout(graph))
        self.tracer: Tracer | None = None

    def part(self, entry: EntryPoint) -> Part | None:
        """One entry point and its stages; None when one is missing that must not be traced yet."""
        try:
            return trace_entry(self.layout, entry, self._stage)
        except _Missing:
            return None

    def may_trace(self) -> None:
        """From here on, what is missing is traced. Done before forking, so that torch is imported once."""
        from bringup.compile.program.trace import tracer_of

        self.tracer = tracer_of(self.graph, self.layout, self.codec.ops, self.buffers)

    def _inputs(self, stage: Stage) -> dict[str, str] | None:
        codec = self.codec
        found = stage_inputs(self.graph, self.layout, stage, codec.name, codec.files)
        functions = {name: spelled_function(function) for name, function in codec.ops.implementations.items()}
        if found is None or codec.key is None or None in functions.values():
            return None
        ops = {"opaque": sorted(codec.ops.opaque), "implementations": sorted(functions.items())}
        buffers = self.buffers.below(f"{stage.path}." if stage.path else "")
        own = {f"target key {name}": value for name, value in codec.key.items()}
        return {**found, "target tools": codec.tools, "ops": str(ops), "buffers": digest(str(buffers)), **own}

    def _stage(self, stage: Stage) -> Traced[bytes]:
        inputs = self._inputs(stage)
        cached = self.store.get("stage", inputs) if inputs else None
        if cached is not None:
            return _unpacked(cached)
        if self.tracer is None:
            raise _Missing
        start = time.perf_counter()
        exported = self.tracer(stage)
        code = self.codec.encode(exported.function, exported.code)
        traced = Traced(function=exported.function, code=code)
        if inputs and inputs == self._inputs(stage):  # no file changed since
            what = f"{stage.name} of {type(self.graph).__name__}, {self.codec.name}"
            self.store.put("stage", inputs, _packed(traced), what=what, seconds=time.perf_counter() - start)
        return traced


def _packed(traced: Traced[bytes]) -> bytes:
    """A line of JSON, then the code."""
    return json.dumps(traced.function.to_json()).encode() + b"\n" + traced.code


def _unpacked(data: bytes) -> Traced[bytes]:
    head, _, code = data.partition(b"\n")
    return Traced(
        function=Function.from_json(json.loads(head)),
        code=code,
        found=True,
    )
