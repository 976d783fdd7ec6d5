"""A cache of bounded size that drops what was used the longest time ago, and never what is in use."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Held = TypeVar("Held")


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Of a cache since it was created: look-ups that found an entry, and that found none; entries dropped for others.

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
    """There is no room for an entry: the others are in use, or it is larger than the cache."""


class PinnedLru(Generic[Key, Held]):
    """Entries by key, in the order in which they were last used. One thread at a time may use it.

    The sizes of all entries together never exceed `limit`. An entry with users is not dropped.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._entries: OrderedDict[Key, _Entry[Held]] = OrderedDict()  # what was used last comes last
        self._size = self._hits = self._misses = self._evictions = 0

    def __contains__(self, key: Key) -> bool:
        """Whether there is an entry; this is no use of it."""
        return key in self._entries

    def __iter__(self) -> Iterator[Key]:
        """Every key, what was used the longest time ago first."""
        return iter(list(self._entries))

    def get(self, key: Key) -> Held | None:
        """The value of a key, which is used now; None without one."""
        entry = self._entries.get(key)
        if entry is None:
            self._misses += 1
            return None
        self._hits += 1
        self._entries.move_to_end(key)
        return entry.value

    def __getitem__(self, key: Key) -> Held:
        """The value of a key that is there; this is no use of it."""
        return self._entries[key].value

    def put(self, key: Key, value: Held, size: int) -> None:
        """Adds an entry, used now, of a key that has none, where `make_room` has made room for it."""
        assert key not in self._entries, "an entry is added once"
        assert self._size + size <= self.limit, "there is room for what is added"
        self._entries[key] = _Entry(value, size)
        self._size += size

    def make_room(self, size: int) -> list[Held]:
        """Drops entries, what was used the longest time ago first, until one of `size` fits; gives what they held.

        Raises Full, and drops nothing, where all that has no users is not enough.
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
        """Takes out an entry that has no users."""
        return self._drop(key)

    def _drop(self, key: Key) -> Held:
        entry = self._entries.pop(key)
        assert not entry.users, "an entry in use stays"
        self._size -= entry.size
        return entry.value

    def pin(self, key: Key) -> None:
        """One user more of an entry."""
        self._entries[key].users += 1

    def unpin(self, key: Key) -> None:
        """One user less."""
        entry = self._entries[key]
        assert entry.users, "an entry is unpinned once by each of its users"
        entry.users -= 1

    @property
    def _pinned(self) -> int:
        return sum(entry.size for entry in self._entries.values() if entry.users)

    def figures(self) -> Figures:
        """What has happened so far, and what is in the cache now."""
        return Figures(
            hits=self._hits,
            misses=self._misses,
            evictions=self._evictions,
            entries=len(self._entries),
            size=self._size,
            pinned=self._pinned,
            limit=self.limit,
        )
