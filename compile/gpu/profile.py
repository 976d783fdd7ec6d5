"""Profiles of steps: the time of each launch, and the bytes that an emulator counts. Writes them as a Chrome trace."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from bringup.compile.gpu.driver.driver import Driver, Event, Grid, Stream

READ, WRITTEN = "bytes read", "bytes written"  # keys of an emulator's counts


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One launch: its start since the begin of the profile and its duration, both in seconds.

    `nbytes`: the bytes that it moves according to the schedule. `counts`: the counts of an emulator, such as
    "bytes read"; empty on a GPU.
    """

    entry: str
    label: str
    kernel: str
    grid: Grid
    nbytes: int
    start: float
    seconds: float
    counts: dict[str, float] = field(default_factory=dict[str, float])


@dataclass(frozen=True, slots=True)
class _Mark:
    event: Event
    label: str
    kernel: str
    grid: Grid
    nbytes: int


@dataclass(frozen=True, slots=True)
class Total:
    """All launches of one operation in an entry point, in all layers.

    `seconds`, `nbytes` and `counted` are means of one launch. `counted`: bytes read and written; None on a GPU.
    """

    entry: str
    operation: str
    launches: int
    seconds: float
    nbytes: float
    counted: float | None


@dataclass(slots=True)
class Profile:
    """Measurements of the steps of an executor. Events are recorded before and after each launch, in its stream."""

    measured: list[Measured] = field(default_factory=list[Measured])
    counted: list[dict[str, float]] = field(default_factory=list[dict[str, float]])
    _entry: str = ""
    _marks: list[_Mark] = field(default_factory=list["_Mark"])
    _begin: Event | None = None
    _passed: float = 0.0

    def begin(self, driver: Driver, stream: Stream, entry: str) -> None:
        """Records an event. It is called before the first launch of a step."""
        self._entry, self._marks, self._begin = entry, [], driver.event()
        self.counted.clear()
        driver.record(self._begin, stream)

    def mark(self, driver: Driver, stream: Stream, label: str, kernel: str, grid: Grid, nbytes: int) -> None:
        """Records an event. It is called after each launch."""
        event = driver.event()
        driver.record(event, stream)
        self._marks.append(_Mark(event, label, kernel, grid, nbytes))

    def finish(self, driver: Driver) -> None:
        """Reads and destroys the events of a step. It is called after the step is complete."""
        assert self._begin is not None
        before, last = 0.0, self._begin
        counts: list[dict[str, float]] = (
            self.counted if len(self.counted) == len(self._marks) else [{}] * len(self._marks)
        )
        for mark, counted in zip(self._marks, counts, strict=True):
            now = driver.seconds(self._begin, mark.event)
            self.measured.append(
                Measured(
                    entry=self._entry,
                    label=mark.label,
                    kernel=mark.kernel,
                    grid=mark.grid,
                    nbytes=mark.nbytes,
                    start=self._passed + before,
                    seconds=driver.seconds(last, mark.event),
                    counts=dict(counted),
                )
            )
            before, last = now, mark.event
        self._passed += before
        for event in (self._begin, *(mark.event for mark in self._marks)):
            driver.forget(event)
        self._marks, self._begin = [], None


def totals(profile: Profile) -> list[Total]:
    """Totals by entry point and operation, in the order of their first launches."""
    alike: dict[tuple[str, str], list[Measured]] = {}
    for each in profile.measured:
        alike.setdefault((each.entry, each.label.rpartition(": ")[2]), []).append(each)
    return [
        Total(
            entry=entry,
            operation=operation,
            launches=len(found),
            seconds=sum(each.seconds for each in found) / len(found),
            nbytes=sum(each.nbytes for each in found) / len(found),
            counted=sum(_moved(each) for each in found) / len(found) if found[0].counts else None,
        )
        for (entry, operation), found in alike.items()
    ]


def _moved(each: Measured) -> float:
    return each.counts[READ] + each.counts[WRITTEN]


def chrome_trace(profile: Profile) -> bytes:
    """The launches as "complete events" of the Trace Event Format, in JSON; chrome://tracing and Perfetto read it."""
    events: list[dict[str, Any]] = [
        {
            "name": each.label,
            "cat": each.entry,
            "ph": "X",
            "ts": each.start * 1e6,
            "dur": each.seconds * 1e6,
            "pid": 0,
            "tid": 0,
            "args": {"kernel": each.kernel, "grid": list(each.grid), "bytes": each.nbytes, **each.counts},
        }
        for each in profile.measured
    ]
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ns"}).encode()
