"""Ready: an entry point on the device, with the launches and copies of its steps."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from bringup.compile.gpu.driver.driver import Address, Arguments, Event, Function, Graph, Grid
from bringup.compile.gpu.sampling import Draws
from bringup.compile.gpu.staging import Staging
from bringup.compile.program.program import Entry

# What a step copies to the device and back: fields, and outputs; fields and sampling settings; sampling settings;
# nothing, because the kernels store tokens in host memory.
Kind = Literal["logits", "draw", "continue", "repeat"]


@dataclass(frozen=True, slots=True)
class Start:
    """A kernel with its grid and arguments. `label` and `nbytes` (bytes moved, by the schedule) are for profiles."""

    label: str
    nbytes: int
    function: Function
    grid: Grid
    arguments: Arguments


@dataclass(frozen=True, slots=True)
class Flight:
    """A step in the stream. Its tokens are in the host's slot `slot` once the event `done` is complete."""

    slot: int
    done: Event


@dataclass(slots=True)
class Ready:
    """An entry point on the device. `outputs`: host array and device address, by name.

    `starts` are the launches of a step that returns its outputs. `draw_starts` are those of a step that samples tokens
    with the settings of `draws`, and stores them in the slot of their index.
    `can_continue`: the fields on the device are those of the step after the latest one. `ahead` is the step after the
    latest one, if it has been started in advance. `graphs` are by the kind of a step and the slot of its tokens;
    `events` are by slot.
    """

    entry: Entry
    staging: Staging
    starts: list[Start]
    outputs: dict[str, tuple[np.ndarray, Address]]
    draws: Draws | None = None
    draw_starts: list[list[Start]] = field(default_factory=list[list[Start]])
    can_continue: bool = False
    ahead: Flight | None = None
    graphs: dict[tuple[Kind, int], Graph] = field(default_factory=dict[tuple[Kind, int], Graph])
    events: list[Event] = field(default_factory=list[Event])

    def moved_by(self, start: Start) -> int:
        """Bytes that a launch moves, with the sampling settings of the step."""
        return self.draws.moved_by(start.function.name, start.nbytes) if self.draws else start.nbytes
