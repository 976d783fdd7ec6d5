"""The LoRAs of a running bundle: those that requests name, and the slots that steps read."""

from __future__ import annotations

from functools import partial

from bringup.arguments import integer
from bringup.compile.program.program import Executor, Interface
from bringup.compile.runtime.lora.cache import CacheFigures, LoraCache, unknown
from bringup.compile.runtime.lora.lru import PinnedLru
from bringup.compile.runtime.lora.slots import Slots
from bringup.compile.runtime.lora.weights import LoraWeights, TaskId
from bringup.diagnostics import fail
from bringup.system.memory import available_bytes

HOST_BYTES = 1 << 30  # TensorRT-LLM's default (PeftCacheConfig, `host_cache_size`)


class Loras:
    """Any thread may add, hold and release LoRAs; the thread that runs steps places them.

    `fraction` is the part of the host's memory that is free after the bundle is loaded which slots may use: this may be
    fewer slots than the bundle has. Raises BU621 if there is no memory for one slot, BU024 for an invalid fraction or
    number of bytes.
    """

    def __init__(
        self,
        interface: Interface,
        executor: Executor,
        *,
        host_bytes: int = HOST_BYTES,
        fraction: float | None = None,
    ) -> None:
        self.slots = Slots(interface)
        count = self.slots.count
        if fraction is not None:
            count = _affordable(self.slots, fraction, available_bytes() or 0)
        host = PinnedLru[TaskId, LoraWeights](integer("lora_bytes", host_bytes, minimum=0))
        self._cache = LoraCache(host, PinnedLru(count), partial(self.slots.write, executor))

    def add(self, task: TaskId, weights: LoraWeights) -> None:
        """As `LoraCache.add`. Also raises BU622 for a LoRA that the bundle does not support."""
        self.slots.check(weights, task)
        self._cache.add(task, weights)

    def check(self, task: TaskId | None, weights: LoraWeights | None = None) -> None:
        """Raises BU620 and BU622 as `hold` would now, without pinning anything."""
        if task is None:
            return
        self._check(task, weights)
        if weights is None and task not in self._cache:
            raise unknown(task)

    def hold(self, task: TaskId | None, weights: LoraWeights | None = None) -> LoraWeights | None:
        """As `LoraCache.hold`; None, which stands for no LoRA, pins nothing. Raises BU622 as `add` does."""
        if task is None:
            return None
        self._check(task, weights)
        return self._cache.hold(task, weights)

    def release(self, task: TaskId | None) -> None:
        """Removes one user of a LoRA from `hold`."""
        if task is not None:
            self._cache.release(task)

    def has_slot(self, task: TaskId | None) -> bool:
        """Whether `place` has a slot."""
        return task is None or self._cache.has_slot(task)

    def place(self, task: TaskId | None) -> int:
        """The slot of a pinned task, with one more user; -1 for None. Raises BU621 if all are in use."""
        return -1 if task is None else self._cache.place(task)

    def leave(self, task: TaskId | None) -> None:
        """Removes one user of a slot from `place`."""
        if task is not None:
            self._cache.leave(task)

    def figures(self) -> CacheFigures:
        """Hits, misses and evictions of the host's cache and of the slots."""
        return self._cache.figures()

    def _check(self, task: TaskId, weights: LoraWeights | None) -> None:
        if weights is not None or not self.slots.count:
            self.slots.check(weights or LoraWeights({}), task)


def _affordable(slots: Slots, fraction: float, free: int) -> int:
    """The number of slots that fit in a fraction of free memory."""
    if not (hasattr(fraction, "__float__") and 0 < fraction <= 1):  # not a text, of an untyped caller
        raise fail(
            "BU024",
            f"`lora_fraction` is {fraction}, not a number above 0 and up to 1",
            help="pass a fraction, such as 0.5",
        )
    room = int(fraction * free)
    if slots.count and room < slots.slot_bytes:
        message = f"a slot for a LoRA needs {slots.slot_bytes:,} bytes, and {fraction:.1%} of free memory is {room:,}"
        raise fail("BU621", message, help="give a larger fraction")
    return min(slots.count, room // max(slots.slot_bytes, 1))
