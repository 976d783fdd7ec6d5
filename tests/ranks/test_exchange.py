"""Exchanges between threads: sums, parts, and ranks that fail, end, or are at another place."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from bringup.compile.ranks.exchange import Exchange, UnmatchedError


def test_sums_and_parts_are_those_of_the_group() -> None:
    exchange, groups = Exchange(4), ((0, 1), (2, 3))

    def on_rank(rank: int) -> list[tuple[float, list[float]]]:
        found: list[tuple[float, list[float]]] = []
        for step in range(20):
            own = torch.tensor(float(rank + step))
            total = exchange.sum(rank, "sum", own, groups[rank // 2])
            parts = [each.item() for each in exchange.gather(rank, "parts", total, range(4))]
            assert own.item() == rank + step  # a sum changes no part
            found.append((total.item(), parts))
        return found

    wanted = [[(1.0 + 4 * (rank // 2) + 2 * step, [1.0 + 2 * step] * 2 + [5.0 + 2 * step] * 2) for step in range(20)]
              for rank in range(4)]  # fmt: skip
    for _ in range(2):  # it may run again
        assert exchange.run(on_rank) == wanted
    assert not exchange._rounds  # no tensor remains


def test_a_rank_that_fails_ends_the_others() -> None:
    """Its own exception is raised, not that of those that waited for it."""
    exchange = Exchange(3)

    def on_rank(rank: int) -> Tensor:
        if rank == 2:
            raise ArithmeticError("rank 2")
        return exchange.sum(rank, "sum", torch.zeros(1), range(3))

    with pytest.raises(ArithmeticError, match="rank 2"):
        exchange.run(on_rank)


def test_a_rank_that_ends_early_ends_the_others() -> None:
    exchange = Exchange(3)

    def on_rank(rank: int) -> None:
        for _ in range(1 if rank == 1 else 2):
            exchange.sum(rank, "sum", torch.zeros(1), range(3))

    with pytest.raises(UnmatchedError, match=r"rank [02] exchanges at `sum`, and rank 1 does not"):
        exchange.run(on_rank)


def test_ranks_at_different_places() -> None:
    exchange = Exchange(2)

    def on_rank(rank: int) -> None:
        exchange.gather(rank, "ab"[rank], torch.zeros(1), range(2))

    with pytest.raises(UnmatchedError, match="rank 0 exchanges at `a`, and rank 1 does not"):
        exchange.run(on_rank)
