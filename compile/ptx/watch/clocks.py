"""Clocks: which actions of other agents happened before those of each warp; vector clocks with one time per block.

Mattern, "Virtual Time and Global States of Distributed Systems" (1988), in the form of Flanagan and Freund, "FastTrack"
(2009): an action is stamped with its agent and the block's time. It happened before another action if the agent of that
one knows its time. Agents are the warps, then the asynchronous readers and writers of shared memory: one for the wgmma
of each warp group, one for tensor loads, one for tensor stores, and one for the cp.async of each warp.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bringup.compile.ptx.hardware.context import Context, Mask

Array = NDArray[Any]
SELF = np.int32(1 << 30)  # every agent knows its own actions
AGENT_BITS = 7
WARP = 32
_HISTORY = 8  # number of committed groups of asynchronous operations that are stored


class Clocks:
    """The clocks of the blocks of a context. `seen[b, w, a]`: the time up to which warp w knows agent a's actions."""

    def __init__(self, blocks: int, threads: int) -> None:
        self.warps = -(-threads // WARP)
        self.groups = threads // 128
        self.copier = self.warps + self.groups + 2  # the agent of cp.async of warp 0
        self.agents = self.copier + self.warps
        self.load_agent, self.store_agent = self.copier - 2, self.copier - 1
        self.time = np.ones(blocks, np.int32)
        self.base = np.zeros(blocks, np.int32)
        self.seen = np.zeros((blocks, self.warps, self.agents), np.int32)
        self.seen[:, :, self.warps : self.copier] = SELF  # these agents have no actions yet
        own = np.arange(self.warps)
        self.seen[:, own, own] = SELF
        self.issued = np.zeros((blocks, self.warps, self.agents - self.warps), np.int32)
        self.committed = np.zeros((blocks, self.warps, self.agents - self.warps, _HISTORY), np.int32)
        self.arrived: dict[int, NDArray[np.int32]] = {}
        self.ended: dict[int, NDArray[np.int32]] = {}

    def rows(self, rows: Array) -> Clocks:
        """A copy for some of the blocks."""
        part = Clocks.__new__(Clocks)
        part.warps, part.groups, part.agents = self.warps, self.groups, self.agents
        part.copier = self.copier
        part.load_agent, part.store_agent = self.load_agent, self.store_agent
        part.time, part.base, part.seen = self.time[rows], self.base[rows], self.seen[rows]
        part.issued, part.committed = self.issued[rows], self.committed[rows]
        part.arrived = {address: known[rows] for address, known in self.arrived.items()}
        part.ended = {address: known[rows] for address, known in self.ended.items()}
        return part

    def warps_of(self, context: Context, lanes: Mask) -> NDArray[np.bool_]:
        """Which warps (B, warps) contain one of the lanes (None: all)."""
        full = context.full(np.True_ if lanes is None else lanes)
        if full.shape[1] % WARP:
            full = np.pad(full, ((0, 0), (0, WARP - full.shape[1] % WARP)))
        return np.logical_or.reduce(full.reshape(full.shape[0], -1, WARP), axis=2)

    def barrier(self, context: Context, lanes: Mask) -> None:
        """A barrier: the lanes' warps now know all that each of them knew or did."""
        taking = self.warps_of(context, lanes)
        known = np.where(taking[:, :, None], self._published(), np.int32(-1)).max(1)
        self.seen = np.where(taking[:, :, None], np.maximum(self.seen, known[:, None, :]), self.seen)
        self.time = self.time + taking.any(1)
        self.base = self.seen[:, :, : self.copier].min((1, 2))

    def _published(self) -> NDArray[np.int32]:
        """What each warp publishes at a release: its own actions up to now. Agents without actions remain unlimited."""
        known = self.seen.copy()
        own = np.arange(self.warps)
        known[:, own, own] = self.time[:, None]
        return known

    def published(self, row: int, warp: int) -> NDArray[np.int32]:
        """What one warp publishes at a release."""
        known = self.seen[row, warp].copy()
        known[warp] = self.time[row]
        return known

    def stamp(self, row: int, agent: int) -> np.int32:
        """The time of an asynchronous action that begins now. No warp knows it before it is waited for."""
        time = self.time[row]
        known = self.seen[row, :, agent]
        self.seen[row, :, agent] = np.where(known == SELF, time - 1, known)
        for at in (self.arrived, self.ended):
            for signal in at.values():
                signal[row, agent] = min(signal[row, agent], time - 1)
        self.base[row] = min(self.base[row], self.seen[row, :, : self.copier].min())
        self.time[row] += 1
        return time

    def issue_copies(self, context: Context, mask: Mask) -> NDArray[np.int32]:
        """The active warps issue cp.async copies. Returns their time in each block."""
        times = self.time.copy()
        taking = self.warps_of(context, mask)
        own = np.arange(self.warps)
        place = own + self.copier - self.warps
        self.issued[:, own, place] = np.where(taking, times[:, None], self.issued[:, own, place])
        self.time = times + np.logical_or.reduce(taking, axis=1)
        return times

    def issue(self, row: int, warp: int, agent: int, time: np.int32) -> None:
        """A warp issues an asynchronous action, which belongs to its next group."""
        self.issued[row, warp, agent - self.warps] = time

    def commit(self, context: Context, mask: Mask, first: int, count: int) -> None:
        """The active warps commit their issued actions of the agents first:first + count as a group."""
        taking = self.warps_of(context, mask)
        chosen = slice(first - self.warps, first - self.warps + count)
        history = self.committed[:, :, chosen]
        shifted = np.concatenate([history[..., 1:], self.issued[:, :, chosen, None]], 3)
        self.committed[:, :, chosen] = np.where(taking[:, :, None, None], shifted, history)

    def wait(self, context: Context, mask: Mask, pending: int, first: int, count: int) -> None:
        """The active warps wait for all groups of the agents first:first + count but the last `pending`."""
        taking = self.warps_of(context, mask)
        done = self.committed[:, :, first - self.warps : first - self.warps + count, max(_HISTORY - 1 - pending, 0)]
        part = self.seen[:, :, first : first + count]
        self.seen[:, :, first : first + count] = np.where(taking[:, :, None], np.maximum(part, done), part)

    def signal(self, row: int, barrier: int, known: NDArray[np.int32]) -> None:
        """Adds to what warps will know after waiting for a barrier object."""
        at = self.arrived.get(barrier)
        if at is None:
            at = self.arrived[barrier] = np.zeros((len(self.time), self.agents), np.int32)
        at[row] = np.maximum(at[row], known)

    def arrive(self, row: int, threads: Array, barrier: int) -> None:
        """Warps arrive at a barrier object."""
        for warp in np.unique(threads // WARP):
            self.signal(row, barrier, self.published(row, int(warp)))
        self.time[row] += 1

    def end_phase(self, row: int, barrier: int) -> None:
        """A phase ends: what arrived at the barrier object is known to the warps that wait for it."""
        known = self.arrived.get(barrier)
        if known is None:
            return
        at = self.ended.get(barrier)
        if at is None:
            at = self.ended[barrier] = np.zeros((len(self.time), self.agents), np.int32)
        at[row] = known[row]

    def pass_phase(self, row: int, threads: Array, barrier: int) -> None:
        """Warps observe that a phase of a barrier object has ended."""
        known = self.ended.get(barrier)
        if known is not None:
            warps = np.unique(threads // WARP)
            self.seen[row, warps] = np.maximum(self.seen[row, warps], known[row])
