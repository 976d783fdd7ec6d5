"""The blocks of a paged cache: their users, and the blocks whose tokens other sequences can share."""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Sequence


def block_digest(before: bytes, tokens: Sequence[int]) -> bytes:
    """The digest of a full block: of the digest of the previous block (or a salt), and its own tokens.

    Equal digests are equal prefixes: the keys and values of a token depend on all tokens before it, and on no others.
    """
    return hashlib.sha256(before + array("q", tokens).tobytes()).digest()


class BlockPool:
    """Blocks 0 to `count - 1`, each free or used by one or several sequences.

    A published block is found by its digest while it is used, and afterwards until it is allocated again. Unpublished
    free blocks are allocated first, then the least recently released.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.clear()

    def clear(self) -> None:
        """Frees all blocks, and removes their digests."""
        self._users = [0] * self.count
        self._free = OrderedDict.fromkeys(range(self.count))  # in order of allocation
        self._blocks: dict[bytes, int] = {}
        self._digests: dict[int, bytes] = {}

    @property
    def num_free(self) -> int:
        """Blocks that `allocate` can return: those without a user."""
        return len(self._free)

    def allocate(self) -> int | None:
        """A free block for one user, no longer found by a digest. None if all are used."""
        if not self._free:
            return None
        block, _ = self._free.popitem(last=False)
        if digest := self._digests.pop(block, None):
            del self._blocks[digest]
        self._users[block] = 1
        return block

    def find(self, digest: bytes) -> int | None:
        """The block that is published under a digest, with one more user, or None. It must not be written to."""
        block = self._blocks.get(digest)
        if block is not None:
            self._users[block] += 1
            self._free.pop(block, None)
        return block

    def publish(self, block: int, digest: bytes) -> None:
        """Publishes a full block under the digest of its tokens. Of several equal blocks the first is found."""
        assert self._users[block], "a free block holds nothing that is sure"
        if block not in self._digests and digest not in self._blocks:
            self._blocks[digest], self._digests[block] = block, digest

    def release(self, block: int) -> None:
        """Removes one user. A block without users is free, and can be found until it is allocated again."""
        assert self._users[block], "a block is released once by each of its users"
        self._users[block] -= 1
        if not self._users[block]:
            self._free[block] = None
            self._free.move_to_end(block, last=block in self._digests)
