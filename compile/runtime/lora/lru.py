"""A cache of bounded size that evicts the least recently used entries, but none that is in use."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Held = TypeVar("Held")


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Figures of a cache since it was created: lookups with and without a result; evicted entries.

    `size` is that of all entries, `pinned` of those in use.
    """

    hits: int
    misses: int
    evictions: int
    entries: int
    size: int
    pinned: int
    limit: int


@dataclass(slots=True)
class _Entry(Generic[Held]):
    value: Held
    size: int
    users: int = 0


class Full(Exception):
    """There is no space for an entry: the others are in use, or it is larger than the cache."""


class PinnedLru(Generic[Key, Held]):
    """Entries by key, in the order of their last use. One thread at a time may use it.

    The total size of entries never exceeds `limit`. An entry with users is not evicted.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._entries: OrderedDict[Key, _Entry[Held]] = OrderedDict()  # the most recently used last
        self._size = self._hits = self._misses = self._evictions = 0

    def __contains__(self, key: Key) -> bool:
        """Whether there is an entry; this does not count as a use."""
        return key in self._entries

    def __iter__(self) -> Iterator[Key]:
        """Every key, the least recently used first."""
        return iter(list(self._entries))

    def get(self, key: Key) -> Held | None:
        """The value of a key, which counts as a use; None without an entry."""
        entry = self._entries.get(key)
        if entry is None:
            self._misses += 1
            return None
        self._hits += 1
        self._entries.move_to_end(key)
        return entry.value

    def __getitem__(self, key: Key) -> Held:
        """The value of an existing key; this does not count as a use."""
        return self._entries[key].value

    def put(self, key: Key, value: Held, size: int) -> None:
        """Adds an entry for a new key, as used now; `make_room` must have made room for it."""
        assert key not in self._entries, "an entry is added once"
        assert self._size + size <= self.limit, "there is room for what is added"
        self._entries[key] = _Entry(value, size)
        self._size += size

    def make_room(self, size: int) -> list[Held]:
        """Evicts entries, the least recently used first, until one of `size` fits; returns their values.

        Raises Full, and evicts nothing, if the entries without users are not enough.
        """
        dropped: list[Key] = []
        excess = self._size + size - self.limit
        for other, entry in self._entries.items():
            if excess <= 0:
                break
            if not entry.users:
                dropped.append(other)
                excess -= entry.size
        if excess > 0:
            raise Full
        self._evictions += len(dropped)
        return [self._drop(other) for other in dropped]

    def fits(self, size: int) -> bool:
        """Whether `make_room` can make room for an entry of this size."""
        return size <= self.limit - self._pinned

    def remove(self, key: Key) -> Held:
        """Removes an entry without users."""
        return self._drop(key)

    def _drop(self, key: Key) -> Held:
        entry = self._entries.pop(key)
        assert not entry.users, "an entry in use stays"
        self._size -= entry.size
        return entry.value

    def pin(self, key: Key) -> None:
        """Adds one user of an entry."""
        self._entries[key].users += 1

    def unpin(self, key: Key) -> None:
        """Removes one user of an entry."""
        entry = self._entries[key]
        assert entry.users, "an entry is unpinned once by each of its users"
        entry.users -= 1

    @property
    def _pinned(self) -> int:
        return sum(entry.size for entry in self._entries.values() if entry.users)

    def figures(self) -> Figures:
        """The counts so far, and the current sizes."""
        return Figures(
            hits=self._hits,
            misses=self._misses,
            evictions=self._evictions,
            entries=len(self._entries),
            size=self._size,
            pinned=self._pinned,
            limit=self.limit,
        )
