"""The cache of LoRAs against a model of it: a list in the order of use, searched from its front."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from threading import Thread

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from bringup.compile.runtime.lora.cache import LoraCache
from bringup.compile.runtime.lora.lru import Full, PinnedLru
from bringup.compile.runtime.lora.weights import LoraFactors, LoraWeights
from bringup.diagnostics import BringupError

OPERATIONS, THREADS, TASKS = 100_000, 8, 24


def weights(size: int, value: int = 0) -> LoraWeights:
    """A LoRA of `size` bytes."""
    return LoraWeights({"w": LoraFactors(np.full((1, size - 1), value, np.uint8), np.full((1, 1), value, np.uint8))})


@dataclass
class Model:
    """What `PinnedLru` is to do, the plain way: entries [key, value, size, users], what was used last at the end."""

    limit: int
    entries: list[list] = field(default_factory=list)
    evictions: int = 0

    def find(self, key):
        return next((entry for entry in self.entries if entry[0] == key), None)

    def get(self, key):
        entry = self.find(key)
        if entry:
            self.entries.remove(entry)
            self.entries.append(entry)
        return entry and entry[1]

    def make_room(self, size):
        left, gone = list(self.entries), []
        while sum(entry[2] for entry in left) + size > self.limit:
            oldest = next((entry for entry in left if not entry[3]), None)
            if oldest is None:
                return Full
            left.remove(oldest)
            gone.append(oldest[1])
        self.entries, self.evictions = left, self.evictions + len(gone)
        return gone

    def put(self, key, value, size):
        assert self.find(key) is None
        self.entries.append([key, value, size, 0])

    def remove(self, key):
        entry = self.find(key)
        assert entry[3] == 0
        self.entries.remove(entry)
        return entry[1]

    def pin(self, key):
        self.find(key)[3] += 1

    def unpin(self, key):
        self.find(key)[3] -= 1
        assert self.find(key)[3] >= 0


CHANGES = ("get", "make_room", "put", "remove", "pin", "unpin")


def logged(limit: int, log: list) -> PinnedLru:
    """A cache that notes each call, what it gave, and what is in it after: under the lock of its owner, so in order."""

    def note(name: str):
        plain = getattr(PinnedLru, name)

        def call(self, *args):
            try:
                out = plain(self, *args)
            except Full:
                log.append((name, args, Full, list(self)))
                raise
            log.append((name, args, out, list(self)))
            assert self.figures().size <= limit
            return out

        return call

    return type("Logged", (PinnedLru,), {name: note(name) for name in CHANGES})(limit)


def replay(log: list, limit: int) -> Model:
    """Every call on the model: it gives the same, and leaves the same keys in the same order."""
    model = Model(limit)
    for name, args, out, keys in log:
        assert getattr(model, name)(*args) == out, (name, args)
        assert [entry[0] for entry in model.entries] == keys, (name, args)
        assert sum(entry[2] for entry in model.entries) <= limit
    return model


class Worker:
    """One thread's random calls: it holds at most four LoRAs, and places only what it holds."""

    def __init__(
        self, seed: int, cache: LoraCache, sent: dict[int, LoraWeights], slots: dict[int, LoraWeights]
    ) -> None:
        self.draw, self.cache, self.sent, self.slots = random.Random(seed), cache, sent, slots
        self.idle: list[int] = []  # held, and not placed
        self.placed: list[int] = []
        self.outcomes: list[str] = []
        self.failures: list[BaseException] = []

    def run(self) -> None:
        actions = [self.add, self.hold, self.hold_by_id, self.release, self.place, self.leave, self.ask]
        try:
            for _ in range(OPERATIONS // THREADS):
                self.one(self.draw.choice(actions))
            for task in self.placed:
                self.cache.leave(task)
            for task in (*self.placed, *self.idle):
                self.cache.release(task)
        except BaseException as error:
            self.failures.append(error)

    def one(self, action) -> None:
        try:
            action(self.draw.randrange(TASKS))
            self.outcomes.append(action.__name__)
        except BringupError as error:
            self.outcomes.append(error.findings[0].code)

    def add(self, task: int) -> None:
        self.cache.add(task, self.sent[task])

    def hold(self, task: int) -> None:
        if len(self.idle) + len(self.placed) < 4:
            assert self.cache.hold(task, self.sent[task]) is self.sent[task]
            self.idle.append(task)

    def hold_by_id(self, task: int) -> None:
        if len(self.idle) + len(self.placed) < 4:
            assert self.cache.hold(task) is self.sent[task]
            self.idle.append(task)

    def release(self, _: int) -> None:
        if self.idle:
            self.cache.release(self.idle.pop())

    def place(self, _: int) -> None:
        if self.idle:
            slot = self.cache.place(self.idle[-1])
            self.placed.append(self.idle.pop())
            assert self.slots[slot] is self.sent[self.placed[-1]], "a slot has the weights of its task"

    def leave(self, _: int) -> None:
        if self.placed:
            self.cache.leave(self.placed[0])
            self.idle.append(self.placed.pop(0))

    def ask(self, task: int) -> None:
        self.cache.has_slot(task)
        self.cache.figures()


def test_eight_threads_and_100_000_operations_are_those_of_the_model():
    host_log, device_log, slots = [], [], {}
    host, device = logged(1000, host_log), logged(6, device_log)
    cache = LoraCache(host, device, slots.__setitem__)
    sent = {task: weights(50 + 9 * task, task) for task in range(TASKS)}
    workers = [Worker(seed, cache, sent, slots) for seed in range(THREADS)]
    threads = [Thread(target=worker.run) for worker in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [worker.failures for worker in workers] == [[]] * THREADS
    outcomes = [outcome for worker in workers for outcome in worker.outcomes]
    assert len(outcomes) == OPERATIONS
    assert {"BU620", "BU621", "add", "hold", "hold_by_id", "place"} <= set(outcomes)

    of_host, of_device = replay(host_log, 1000), replay(device_log, 6)
    figures = cache.figures()
    assert figures.host.evictions == of_host.evictions > 100
    assert figures.device.evictions == of_device.evictions > 100
    assert figures.host.pinned == figures.device.pinned == 0
    found = [out is not None for name, _, out, _ in host_log if name == "get"]
    assert (figures.host.hits, figures.host.misses) == (sum(found), len(found) - sum(found))
    assert set(device) <= set(host), "what is on the device is on the host too"
    assert len({device[task] for task in device}) == len(list(device)), "no slot has two LoRAs"


class CacheMachine(RuleBasedStateMachine):
    """One thread, any order: `LoraCache` against two lists."""

    def __init__(self) -> None:
        super().__init__()
        self.slots: dict[int, LoraWeights] = {}
        self.failing = False
        self.cache = LoraCache(PinnedLru(100), PinnedLru(2), self.write)
        self.host: list[tuple[int, LoraWeights]] = []  # what was used last at the end
        self.device: list[int] = []
        self.held: list[int] = []
        self.placed: list[int] = []

    def write(self, slot: int, each: LoraWeights) -> None:
        if self.failing:
            raise OSError("the device is gone")
        self.slots[slot] = each

    def known(self, task: int) -> LoraWeights | None:
        return dict(self.host).get(task)

    def used(self, task: int) -> None:
        self.host.sort(key=lambda pair: pair[0] == task)

    @rule(task=st.integers(0, 6), size=st.integers(10, 60), hold=st.booleans())
    def send(self, task, size, hold):
        given, known = weights(size, task), self.known(task)
        room, rest = size, list(self.host)
        for pair in self.host:
            if sum(each.nbytes for _, each in rest) + room <= 100:
                break
            if pair[0] not in self.held:
                rest.remove(pair)
        fits = sum(each.nbytes for _, each in rest) + room <= 100
        wanted = "BU620" if known and known.nbytes != size else "" if known or fits else "BU621"
        assert self.outcome(self.cache.hold if hold else self.cache.add, task, given) == wanted
        if known:
            self.used(task)
        elif fits:
            self.host = [*rest, (task, given)]
            self.device = [each for each in self.device if self.known(each)]
        if hold and not wanted:
            self.held.append(task)

    @rule(task=st.integers(0, 6))
    def hold_by_id(self, task):
        wanted = "" if self.known(task) else "BU620"
        assert self.outcome(self.cache.hold, task) == wanted
        self.used(task)
        self.held += [task] if not wanted else []

    @precondition(lambda self: set(self.held))
    @rule(data=st.data(), failing=st.booleans())
    def place(self, data, failing):
        task = data.draw(st.sampled_from(sorted(set(self.held))))
        idle = [each for each in self.device if each not in self.placed]
        fits = task in self.device or len(self.device) < 2 or bool(idle)
        assert self.cache.has_slot(task) == fits
        self.failing = failing
        written = fits and task not in self.device
        if not fits:
            assert self.outcome(self.cache.place, task) == "BU621"
        else:
            if task not in self.device and len(self.device) == 2:
                self.device.remove(idle[0])
            if failing and written:
                with pytest.raises(OSError, match="gone"):
                    self.cache.place(task)
            else:
                assert self.slots[self.cache.place(task)] is self.known(task)
                self.device = [each for each in self.device if each != task] + [task]
                self.placed.append(task)
        self.failing = False

    @precondition(lambda self: self.placed)
    @rule(data=st.data())
    def leave(self, data):
        task = data.draw(st.sampled_from(self.placed))
        self.cache.leave(task)
        self.placed.remove(task)

    @precondition(lambda self: any(self.held.count(task) > self.placed.count(task) for task in self.held))
    @rule(data=st.data())
    def release(self, data):
        free = [task for task in set(self.held) if self.held.count(task) > self.placed.count(task)]
        task = data.draw(st.sampled_from(sorted(free)))
        self.cache.release(task)
        self.held.remove(task)

    @invariant()
    def both_levels_are_those_of_the_lists(self):
        figures = self.cache.figures()
        assert figures.host.size == sum(each.nbytes for _, each in self.host) <= 100
        assert figures.host.pinned == sum(self.known(task).nbytes for task in set(self.held))
        assert (figures.device.entries, figures.device.pinned) == (len(self.device), len(set(self.placed)))
        assert figures.host.entries == len(self.host)

    def outcome(self, call, *args) -> str:
        try:
            call(*args)
        except BringupError as error:
            return error.findings[0].code
        return ""


CacheMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
test_any_order_of_calls = CacheMachine.TestCase


def test_what_is_in_use_stays_and_the_error_says_so():
    cache = LoraCache(PinnedLru(100), PinnedLru(1), lambda slot, each: None)
    cache.hold("one", weights(60))
    with pytest.raises(BringupError, match="full of LoRAs in use: 60 of 100 bytes") as caught:
        cache.add("two", weights(50))
    assert caught.value.findings[0].code == "BU621"
    cache.release("one")
    cache.add("two", weights(50))
    with pytest.raises(BringupError, match="`one` is not in the cache") as caught:
        cache.hold("one")
    assert caught.value.findings[0].code == "BU620"
    assert "send its weights and config" in caught.value.findings[0].help
    with pytest.raises(BringupError, match=r"`large` has 101 bytes, and the cache of the host 100"):
        cache.add("large", weights(101))
    cache.hold("two")
    assert cache.place("two") == 0
    cache.hold("three", weights(20))
    with pytest.raises(BringupError, match="has no slot: all 1 of the device are in use"):
        cache.place("three")
