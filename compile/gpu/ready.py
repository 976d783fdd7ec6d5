"""An entry point on the device: what a step of it starts, copies in and copies out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from bringup.compile.gpu.driver.driver import Address, Arguments, Event, Function, Graph, Grid
from bringup.compile.gpu.sampling import Draws
from bringup.compile.gpu.staging import Staging
from bringup.compile.program.program import Entry

# What a step copies in and out: fields and outputs; fields, draws and tokens; draws and tokens; tokens alone.
Kind = Literal["logits", "draw", "continue", "repeat"]


@dataclass(frozen=True, slots=True)
class Start:
    """A kernel with all that its launch needs. A profile has its `label`, and the bytes that the schedule counts."""

    label: str
    nbytes: int
    function: Function
    grid: Grid
    arguments: Arguments


@dataclass(frozen=True, slots=True)
class Flight:
    """A step in the stream: its tokens are in `slot` of the host's once the event has happened."""

    slot: int
    done: Event


@dataclass(slots=True)
class Ready:
    """An entry point on the device. `outputs`: host array and device address by name.

    `draw_starts` draw tokens from its logits, by the settings of `draws`. `can_continue`: the fields of the step on the
    device are those of the step after the latest one. `ahead` is the step after the latest one where it was started
    before anybody called for it. `graphs` are by what a step copies, and the slot of its tokens.
    """

    entry: Entry
    staging: Staging
    starts: list[Start]
    outputs: dict[str, tuple[np.ndarray, Address]]
    draws: Draws | None = None
    draw_starts: list[Start] = field(default_factory=list[Start])
    can_continue: bool = False
    ahead: Flight | None = None
    graphs: dict[tuple[Kind, int], Graph] = field(default_factory=dict[tuple[Kind, int], Graph])
    events: list[Event] = field(default_factory=list[Event])
