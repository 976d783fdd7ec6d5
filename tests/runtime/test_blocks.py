"""The pool against a model of it: no block used twice, none lost, and sharing only where prefixes are equal."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from bringup.compile.runtime.blocks import BlockPool, block_digest

COUNT = 6


class PoolAndModel(RuleBasedStateMachine):
    """The model has a list of users for each block, and the digest under which it was published."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(COUNT)
        self.users = [0] * COUNT
        self.holds: dict[int, bytes] = {}
        self.released: list[int] = []  # the free blocks that can be found, in the order of their release

    @rule()
    def allocate(self) -> None:
        block = self.pool.allocate()
        free = [each for each in range(COUNT) if not self.users[each]]
        if block is None:
            assert not free
            return
        assert block in free
        unknown = [each for each in free if each not in self.holds]
        assert block in unknown if unknown else block == self.released[0]
        self.holds.pop(block, None)
        self.users[block] = 1
        self.released = [each for each in self.released if each != block]

    @rule(word=st.binary(min_size=1, max_size=1), data=st.data())
    def publish(self, word: bytes, data: st.DataObject) -> None:
        used = [each for each in range(COUNT) if self.users[each]]
        if used:
            block = data.draw(st.sampled_from(used))
            self.pool.publish(block, word)
            if block not in self.holds and word not in self.holds.values():
                self.holds[block] = word

    @rule(word=st.binary(min_size=1, max_size=1))
    def find(self, word: bytes) -> None:
        block = self.pool.find(word)
        wanted = [each for each, held in self.holds.items() if held == word]
        assert [block] == (wanted or [None])
        if block is not None:
            self.users[block] += 1
            self.released = [each for each in self.released if each != block]

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        used = [each for each in range(COUNT) if self.users[each]]
        if used:
            block = data.draw(st.sampled_from(used))
            self.pool.release(block)
            self.users[block] -= 1
            if not self.users[block] and block in self.holds:
                self.released.append(block)

    @rule()
    def clear(self) -> None:
        self.pool.clear()
        self.users, self.holds, self.released = [0] * COUNT, {}, []

    @invariant()
    def none_is_lost(self) -> None:
        assert self.pool.num_free == self.users.count(0)


PoolAndModel.TestCase.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
TestPool = PoolAndModel.TestCase


def test_one_user_gets_blocks_in_order() -> None:
    """Which programs for one sequence rely on: their blocks are 0, 1, …"""
    pool = BlockPool(5)
    for count in (3, 5, 1):
        assert [pool.allocate() for _ in range(count)] == list(range(count))
        for block in reversed(range(count)):
            pool.release(block)
    assert [pool.allocate() for _ in range(4)] == [0, 1, 2, 3]
    pool.release(3)
    pool.release(2)
    assert [pool.allocate() for _ in range(4)] == [2, 3, 4, None]


def test_a_digest_is_of_all_tokens_before() -> None:
    one, two = list(range(64)), list(range(64, 128))
    first = block_digest(b"0", one)
    assert block_digest(first, two) == block_digest(block_digest(b"0", one), two)
    others = [block_digest(b"1", one), block_digest(b"0", one[::-1]), block_digest(block_digest(b"0", two), two)]
    assert len({first, block_digest(first, two), *others}) == 5
