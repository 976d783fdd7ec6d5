"""The lifetime of each temporary of an entry point, over all its launches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bringup.compile.program.program import Call
from bringup.compile.schedule.graph.op_graph import OpGraph
from bringup.compile.schedule.in_place import in_place
from bringup.compile.schedule.memory import Life

Owner = tuple[int, str]  # a temporary: the index of the call, and the buffer
GIVEN = -1  # instead of the index of a call: an input of the entry, by its name


@dataclass
class Liveness:
    """The first and last launch of each temporary, and its size in bytes. `over`: temporaries that overwrite another,
    whose last launch is their first.
    """

    first: dict[Owner, int] = field(default_factory=dict[Owner, int])
    last: dict[Owner, int] = field(default_factory=dict[Owner, int])
    nbytes: dict[Owner, int] = field(default_factory=dict[Owner, int])
    over: dict[Owner, Owner] = field(default_factory=dict[Owner, Owner])

    def root(self, owner: Owner) -> Owner:
        """The temporary whose memory this one overwrites, directly or through others."""
        while owner in self.over:
            owner = self.over[owner]
        return owner

    def lives(self) -> list[Life]:
        """The lifetime of each region of memory, for the memory plan."""
        ends: dict[Owner, int] = {}
        for owner, last in self.last.items():
            root = self.root(owner)
            ends[root] = max(ends.get(root, 0), last)
        return [Life(named(root), self.nbytes[root], self.first[root], end) for root, end in ends.items()]


def liveness(
    calls: Sequence[Call],
    graphs: Mapping[str, OpGraph],
    owners: Sequence[Owner],
    outputs: Sequence[Owner],
    *,
    reuse: bool,
) -> Liveness:
    """The lifetimes of an entry's temporaries.

    `owners` has the owner of each of the entry's values, (GIVEN, name) for its inputs. `outputs` are alive after the
    last launch. Without `reuse`, no temporary overwrites another.
    """
    found = Liveness()
    candidates: list[tuple[int, Owner, Owner]] = []
    at = 0
    for number, call in enumerate(calls):
        graph = graphs[call.function]
        values = {f"value:{n}": owners[index] for n, index in enumerate(call.inputs)}
        for group in graph.groups:
            for name in group.outputs & graph.planned:
                found.first[number, name] = found.last[number, name] = at
                found.nbytes[number, name] = graph.buffers[name].nbytes
            for name in group.inputs:
                owner = values.get(name, (number, name))
                if owner in found.last:
                    found.last[owner] = at
            read = [values.get(name, (number, name)) for name in group.inputs]
            for to, name in in_place(graph, group):
                of = values.get(name, (number, name))
                if read.count(of) == 1:  # a call may get one value twice
                    candidates.append((at, (number, to), of))
            at += 1
    found.last.update((owner, at) for owner in outputs if owner in found.last)
    for when, to, of in candidates if reuse else ():
        if found.last.get(of) == when and of not in found.over.values():
            found.over[to] = of
    return found


def named(owner: Owner) -> str:
    """The name of a temporary in the memory plan: `12:%linear`."""
    return f"{owner[0]}:{owner[1]}"
