"""The byte ranges of a parameter or a tensor in a checkpoint's files, for the whole model and for each rank."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from bringup.adapters.apply.byte_runs import Span, needed
from bringup.adapters.apply.parallel import Parallel
from bringup.adapters.apply.rank_plan import Stages, rank_plan
from bringup.adapters.planning.plan import Entry, Plan
from bringup.compile.job import Job
from bringup.compile.report.describe import labelled
from bringup.spec import TensorInfo

MOST = 3  # ranges of a tensor that are listed


def ranks_of(job: Job, parallel: Parallel | None, rank: int | None) -> dict[int, Plan]:
    """The plan of one rank, or of all; {} without a division. Raises as `rank_plan` does."""
    if parallel is None:
        return {}
    stages = Stages.of(job.graph)
    numbers = range(parallel.size) if rank is None else [rank]
    return {number: rank_plan(job.plan, parallel, number, stages) for number in numbers}


def of_parameter(name: str, entry: Entry, ranks: Mapping[int, Plan]) -> Iterator[tuple[str, str]]:
    """Rows: the bytes that a parameter is read from, and, by rank, its shape there and the bytes read for it."""
    yield from labelled("bytes", _places(entry))
    for number, plan in ranks.items():
        held = plan.entries.get(name)
        if held is None:
            yield f"rank {number}", "is in another pipeline stage"
            continue
        places = _places(held) or ["zeros: the first rank of the sum adds it"]
        yield from labelled(f"rank {number}", [f"{list(held.declared.storage[0])}  {places[0]}", *places[1:]])


def of_tensor(info: TensorInfo, ranks: Mapping[int, Plan]) -> Iterator[tuple[str, str]]:
    """Rows: the range of a tensor in its file, and, by rank, which of its bytes are read for which parameters."""
    yield from labelled("bytes", _slices(info, [(0, info.nbytes)]))
    for number, plan in ranks.items():
        found = False
        for name, entry in plan.entries.items():
            if any(other.name == info.name for other in entry.tensors) and (spans := needed(entry).get(info.name)):
                found = True
                yield from labelled(f"rank {number}", [f"{place} for {name}" for place in _slices(info, spans)])
        if not found:
            yield f"rank {number}", "reads nothing of it"


def _places(entry: Entry) -> list[str]:
    infos = {info.name: info for info in entry.tensors}
    return [place for name, spans in needed(entry).items() for place in _slices(infos[name], spans)]


def _slices(info: TensorInfo, spans: Sequence[Span]) -> list[str]:
    """`model.safetensors[2240:526528]`, a Python slice of the file's bytes; for arrays in memory, of the tensor's."""
    file = info.file.name if info.file else info.name
    if not info.plain:
        return [f"{file}, all of `{info.name}` from byte {info.offset} on, which is not stored in order"]
    places = [f"{file}[{info.offset + start}:{info.offset + stop}]" for start, stop in spans]
    return [*places[:MOST], f"and {len(places) - MOST} more ranges"] if len(places) > MOST else places
