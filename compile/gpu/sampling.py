"""Sampling on the device: the settings of each draw as its kernels take them, and the tokens that they give."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from bringup.compile.gpu.driver.driver import Address, Driver, Stream
from bringup.compile.gpu.kernel_plan import FILE, KernelPlan, call_problems
from bringup.compile.gpu.staging import Staging
from bringup.compile.kernels.call import KernelCall, Pointer
from bringup.compile.kernels.select.registry import head_calls_of
from bringup.compile.kernels.select.sampling import (
    ADVANCED,
    DRAWN,
    LOGITS,
    MOST_SEQUENCES,
    SETTINGS,
    Drawing,
    sampling_calls,
)
from bringup.compile.program.program import Draw, Entry, Interface, TensorSpec
from bringup.compile.program.shares import nucleus_of, uniform_of
from bringup.compile.schedule.graph.op_graph import Buffer
from bringup.compile.schedule.schedule import Launch, Schedule

Sampling = Mapping[str, Drawing]  # by decode entry point
MOST = np.iinfo(np.int64).max  # of `top_k`: more than any vocabulary has
SLOTS = 2  # of tokens: those of a step, and of the step that was started before they are read
COLDEST, HOTTEST = np.finfo(np.float32).max, 1e-30  # of log2(e) / temperature: 0 is greedy, infinity times 0 is NaN


def sampling_of(schedule: Schedule, interface: Interface, capability: str) -> Sampling:
    """The calls that draw tokens, of every decode entry point that takes tokens and gives logits, nothing else."""
    found: dict[str, Drawing] = {}
    for entry in interface.entries:
        logits = _logits_of(schedule, entry)
        if logits is not None and entry.num_sequences <= MOST_SEQUENCES:
            head = last_launch(schedule, entry.name)
            last = head_calls_of(head.graph, head.group, capability, logits.name) or ()
            sizes = logits.dtype, entry.num_sequences, logits.shape[-1], interface.max_blocks
            found[entry.name] = Drawing(last, sampling_calls(*sizes, filled=bool(last)))
    return found


def last_launch(schedule: Schedule, entry: str) -> Launch:
    """The last launch of an entry point: that of the logits, if they are all that it returns."""
    return list(schedule.launches(entry))[-1]


def check_calls(plan: KernelPlan, schedule: Schedule, interface: Interface) -> None:
    """Raises ValueError where calls that draw tokens do not fit the entry points that they follow."""
    entries = {entry.name: entry for entry in interface.entries}
    for name, drawing in plan.sampling.items():
        logits = _logits_of(schedule, entries[name]) if name in entries else None
        if logits is None:
            raise ValueError(f"`{FILE}` samples tokens of `{name}`, which returns no logits")
        row = 8 * entries[name].num_sequences  # bytes of a number for each sequence
        sizes = dict.fromkeys((*SETTINGS, *ADVANCED, DRAWN), row) | {LOGITS: logits.nbytes}
        sizes["block_table"] = row * interface.max_blocks
        used = {each.buffer for call in drawing.after for each in call.arguments if isinstance(each, Pointer)}
        if missing := [setting for setting in SETTINGS if setting not in used]:
            message = f"`{FILE}` samples tokens of `{name}` without `{missing[0]}`, as earlier versions did"
            raise ValueError(message)
        head = {each.name: each.nbytes for each in last_launch(schedule, name).graph.buffers.values()}
        for problem in (*_problems(plan, drawing.last, head, name), *_problems(plan, drawing.after, sizes, name)):
            raise ValueError(f"`{FILE}`: {problem}")


def _problems(plan: KernelPlan, calls: Sequence[KernelCall], sizes: Mapping[str, int], entry: str) -> Iterator[str]:
    for call in calls:
        yield from call_problems(call, sizes, plan.kernels[call.kernel], entry)


def _logits_of(schedule: Schedule, entry: Entry) -> Buffer | None:
    """Logits [B, V] that tokens can be drawn from; None where the entry gives other results too, or does not decode.

    And where it takes more than tokens, as a draft does: a drawn token alone is no next step of it.
    """
    outputs = schedule.entries[entry.name].outputs
    if not entry.decode or entry.inputs or set(outputs) != {LOGITS}:
        return None
    number, name = outputs[LOGITS]
    found = schedule.graphs[schedule.entries[entry.name].calls[number].function].buffers[name]
    return found if len(found.shape) == 2 and found.shape[0] == entry.num_sequences else None


def settings_of(draws: Sequence[Draw], sequences: int) -> dict[str, np.ndarray]:
    """`SETTINGS` of so many sequences, [B] each; those without a draw take the likeliest token."""
    settings = {name: np.zeros(sequences, dtype) for name, dtype in SETTINGS.items()}
    for row, (temperature, top_p, uniform, top_k) in enumerate(draws):
        if temperature:
            settings["inverse"][row] = min(max(math.log2(math.e) / temperature, HOTTEST), COLDEST)
        settings["nucleus"][row] = _signed(nucleus_of(top_p))
        settings["uniform"][row] = _signed(uniform_of(uniform))
        settings["top_k"][row] = min(top_k, MOST)
    return settings


def _signed(bits: int) -> int:
    """64 bits as int64."""
    return bits - (1 << 64) if bits >> 63 else bits


class Draws:
    """The settings and the tokens of one entry point's draws, on the host and on the device."""

    def __init__(self, driver: Driver, sequences: int, entry: str) -> None:
        self._sequences = sequences
        specs = [TensorSpec(name=name, shape=(sequences,), dtype=dtype) for name, dtype in SETTINGS.items()]
        self._staging = Staging(driver, specs, f"the draws of {entry}")
        tokens, self._drawn = driver.mapped(SLOTS * 8 * sequences, f"the tokens of {entry}")
        self._tokens = tokens.view(np.int64).reshape(SLOTS, sequences)
        self._filled: list[Draw] | None = None

    def places(self, fields: Staging, logits: Address, slot: int) -> Mapping[str, Address]:
        """The address of each buffer of the kernels' calls. Kernels store the tokens in the host's slot `slot`."""
        own = {name: self._staging.address(name) for name in SETTINGS}
        drawn = self._drawn + slot * self._tokens[slot].nbytes
        return {**own, **{name: fields.address(name) for name in ADVANCED}, LOGITS: logits, DRAWN: drawn}

    def are(self, draws: Sequence[Draw]) -> bool:
        """Whether the settings are these already."""
        return self._filled == list(draws)

    def fill(self, draws: Sequence[Draw]) -> None:
        """Writes the settings on the host, where they are others than before: greedy draws stay the same."""
        if not self.are(draws):
            self._staging.fill(settings_of(draws, self._sequences))
            self._filled = list(draws)

    def moved_by(self, kernel: str, nbytes: int) -> int:
        """Bytes that one of the kernels of a step moves, of so many: `draw` reads no logits of a greedy sequence."""
        drawn = sum(bool(draw.temperature) for draw in self._filled or ())
        return nbytes * drawn // self._sequences if kernel == "draw" else nbytes

    def copy_in(self, driver: Driver, stream: Stream) -> None:
        self._staging.copy_in(driver, stream)

    def tokens(self, slot: int, count: int) -> list[int]:
        """Of the first sequences, once the step is done. The next step has the other slot."""
        return self._tokens[slot, :count].tolist()
