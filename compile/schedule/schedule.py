"""Schedule: for each entry point a flat list of launches, and their memory plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from bringup.compile.program.program import Binding, Entry, Interface
from bringup.compile.schedule.graph.op_graph import Group, OpGraph
from bringup.compile.schedule.liveness import GIVEN, Owner, liveness, named
from bringup.compile.schedule.memory import peak, planned


@dataclass(frozen=True)
class ScheduledCall(Binding):
    """A call of a function.

    `places` has the offset in the arena, in bytes, of the temporaries that other groups read. `values` has the owner of
    each value: the index of a call, and its buffer; for an input of the entry, GIVEN and its name.
    """

    function: str
    prefix: str
    places: Mapping[str, int]
    values: Mapping[str, Owner]
    borrowed: Mapping[str, str]


@dataclass(frozen=True)
class EntrySchedule:
    """The calls of one entry point, in an arena of `nbytes` bytes.

    `outputs`: by name, the index of the call and the buffer. `peak`: the largest number of bytes alive at one launch.
    """

    name: str
    calls: tuple[ScheduledCall, ...]
    outputs: Mapping[str, Owner]
    nbytes: int
    peak: int


@dataclass(frozen=True)
class Launch:
    """One launch: a group of a function's nodes, in the call with index `at`."""

    at: int
    call: ScheduledCall
    graph: OpGraph
    group: Group


@dataclass(frozen=True)
class Schedule:
    """The functions after all passes, and every entry point's launches."""

    graphs: Mapping[str, OpGraph]
    entries: Mapping[str, EntrySchedule]

    @property
    def nbytes(self) -> int:
        """The size of the arena in bytes: that of the largest entry point."""
        return max(entry.nbytes for entry in self.entries.values())

    def launches(self, entry: str) -> Iterator[Launch]:
        """The launches of an entry point, in order."""
        for at, call in enumerate(self.entries[entry].calls):
            graph = self.graphs[call.function]
            for group in graph.groups:
                yield Launch(at, call, graph, group)


def scheduled(interface: Interface, graphs: Mapping[str, OpGraph], *, reuse: bool = True) -> Schedule:
    """The schedule of a program from its functions after the passes; without `reuse`, memory is not reused."""
    return Schedule(graphs, {entry.name: _entry(entry, graphs, reuse) for entry in interface.entries})


def _entry(entry: Entry, graphs: Mapping[str, OpGraph], reuse: bool) -> EntrySchedule:
    owners: list[Owner] = [(GIVEN, spec.name) for spec in entry.inputs]
    for number, call in enumerate(entry.calls):
        owners += [(number, view.buffer) for view in graphs[call.function].results]
    outputs = {name: owners[index] for name, index in entry.outputs.items()}
    found = liveness(entry.calls, graphs, owners, list(outputs.values()), reuse=reuse)
    lives = found.lives()
    plan = planned(lives, reuse=reuse)
    calls: list[ScheduledCall] = []
    for number, call in enumerate(entry.calls):
        temporaries = sorted(graphs[call.function].planned)
        places = {name: plan.offsets[named(found.root((number, name)))] for name in temporaries}
        values = {f"value:{at}": owners[index] for at, index in enumerate(call.inputs)}
        calls.append(ScheduledCall(call.function, call.prefix, places, values, call.borrowed))
    return EntrySchedule(entry.name, tuple(calls), outputs, plan.nbytes, peak(lives))
