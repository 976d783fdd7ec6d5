"""The two levels of LoRAs: all that were added, on the host; those that steps read, in slots of the device.

The design is that of TensorRT-LLM's LoraCache (docs/source/advanced/lora.md): a task is sent once with its weights,
and by its id alone from then on.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import RLock
from typing import NamedTuple

from bringup.compile.runtime.lora.lru import Figures, Full, PinnedLru
from bringup.compile.runtime.lora.weights import LoraWeights, TaskId
from bringup.diagnostics import BringupError, fail


class CacheFigures(NamedTuple):
    """The figures of the host's level, with sizes in bytes, and of the device's, with sizes in slots."""

    host: Figures
    device: Figures


class LoraCache:
    """LoRAs by task id. Any thread may use it.

    `host` has weights, sized by bytes; `device` slot numbers, each of size 1, so its limit is their number. A LoRA on
    the device is also on the host. A request pins its LoRA (`hold`, `release`) from when it is added until it ends, and
    its slot (`place`, `leave`) while it runs: pinned entries are not evicted. `write` copies weights to a slot.
    """

    def __init__(
        self,
        host: PinnedLru[TaskId, LoraWeights],
        device: PinnedLru[TaskId, int],
        write: Callable[[int, LoraWeights], None],
    ) -> None:
        self._host, self._device, self._write = host, device, write
        self._free = list(range(device.limit))[::-1]
        self._lock = RLock()

    def add(self, task: TaskId, weights: LoraWeights) -> None:
        """Adds weights to the host's level under an id; the same weights again count as a use.

        Raises BU621 if all entries are pinned, or if the weights are larger than the cache, and BU620 for an id with
        other weights.
        """
        with self._lock:
            known = self._host.get(task)
            if known is None:
                self._add(task, weights)
            elif known is not weights and known.digest != weights.digest:
                message = f"the LoRA `{task}` is in the cache with other weights"
                raise fail("BU620", message, help="send these under another id")

    def hold(self, task: TaskId, weights: LoraWeights | None = None) -> LoraWeights:
        """The weights of a task, with one more user. The first use must pass the weights.

        Raises BU620 for an id that is not in the cache if no weights are passed, and the errors of `add`.
        """
        with self._lock:
            if weights is not None:
                self.add(task, weights)
            elif self._host.get(task) is None:
                raise unknown(task)
            self._host.pin(task)
            return self._host[task]

    def release(self, task: TaskId) -> None:
        """Removes one user of a task's weights."""
        with self._lock:
            self._host.unpin(task)

    def __contains__(self, task: TaskId) -> bool:
        """Whether `hold` needs no weights for a task now; this does not count as a use."""
        with self._lock:
            return task in self._host

    def has_slot(self, task: TaskId) -> bool:
        """Whether `place` has a slot for a task."""
        with self._lock:
            return task in self._device or self._device.fits(1)

    def place(self, task: TaskId) -> int:
        """The slot of a pinned task, with one more user; it contains the weights.

        Raises BU621 if every slot is in use. If the write fails, the task has no slot.
        """
        with self._lock:
            slot = self._device.get(task)
            if slot is None:
                slot = self._placed(task)
            self._device.pin(task)
            return slot

    def leave(self, task: TaskId) -> None:
        """Removes one user of a task's slot."""
        with self._lock:
            self._device.unpin(task)

    def figures(self) -> CacheFigures:
        """Hits, misses and evictions of both levels, and their contents."""
        with self._lock:
            return CacheFigures(self._host.figures(), self._device.figures())

    def _add(self, task: TaskId, weights: LoraWeights) -> None:
        size = weights.nbytes
        before = set(self._host)
        try:
            self._host.make_room(size)
        except Full:
            raise _full(task, size, self._host.figures()) from None
        for dropped in before.difference(self._host):
            if dropped in self._device:
                self._free.append(self._device.remove(dropped))
        self._host.put(task, weights, size)

    def _placed(self, task: TaskId) -> int:
        try:
            self._free += self._device.make_room(1)
        except Full:
            count = self._device.limit
            message = f"the LoRA `{task}` has no slot: all {count} of the device are in use by running requests"
            raise fail("BU621", message, help="wait until one ends, or compile with a larger --max-loras") from None
        slot = self._free.pop()
        try:
            self._write(slot, self._host[task])
        except BaseException:
            self._free.append(slot)
            raise
        self._device.put(task, slot, 1)
        return slot


def unknown(task: TaskId) -> BringupError:
    """BU620 for a task that is not in the cache."""
    help = "send its weights and config with the request, as with the first one"
    return fail("BU620", f"the LoRA `{task}` is not in the cache", help=help)


def _full(task: TaskId, size: int, host: Figures) -> BringupError:
    """BU621 for a LoRA that does not fit in the host's cache."""
    if size > host.limit:
        message = f"the LoRA `{task}` has {size:,} bytes, and the cache of the host {host.limit:,}"
        return fail("BU621", message, help="give the host a larger cache")
    message = f"the LoRA `{task}` has {size:,} bytes, and the cache of the host is full of LoRAs in use: "
    message += f"{host.pinned:,} of {host.limit:,} bytes"
    return fail("BU621", message, help="wait until requests end, or give the host a larger cache")
