"""Work in forked processes: every item once and in order, and again here where a child ends."""

from __future__ import annotations

import multiprocessing
import os
import select
import struct
import time
from contextlib import nullcontext
from pathlib import Path

import pytest

from bringup.system import forked as module
from bringup.system.forked import forked
from tests import PATIENCE


@pytest.fixture(autouse=True)
def three_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "processors", lambda: 3)
    monkeypatch.setattr(module, "_fork_is_safe", lambda: True)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 10, 9000, 20000])
def test_every_item_in_order(count: int) -> None:
    assert forked(lambda item: item * item, range(count)) == [item * item for item in range(count)]


def test_first_items_are_of_different_processes() -> None:
    found = forked(lambda item: os.getpid(), range(3))
    assert len(set(found)) == 3
    assert found[0] == os.getpid()


def test_what_a_child_fails_at_is_done_here() -> None:
    parent = os.getpid()

    def work(item: int) -> int:
        if item == 1 and os.getpid() != parent:
            os._exit(9)
        return item

    assert forked(work, range(5)) == list(range(5))


def test_an_error_is_raised_here() -> None:
    def work(item: int) -> int:
        if item == 2:
            raise ValueError(item)
        return item

    with pytest.raises(ValueError, match="2"):
        forked(work, range(5))


def test_the_first_error_is_raised_whatever_fails_sooner() -> None:
    parent = os.getpid()

    def work(item: int) -> int:
        if item == 1 and os.getpid() != parent:
            time.sleep(0.5)  # the parent meets the error of item 3 before this one
        if item in (1, 3):
            raise ValueError(f"item {item}")
        if item == 2:
            time.sleep(1)
        return item

    with pytest.raises(ValueError, match="item 1"):
        forked(work, range(5))


def test_a_child_that_is_killed_while_it_sends() -> None:
    ours, theirs = multiprocessing.Pipe(duplex=False)
    theirs.send((1, "whole"))
    os.write(theirs.fileno(), struct.pack("!i", 1000) + b"part")  # a message's length, and less than that
    theirs.close()
    assert module._received(ours) == {1: "whole"}


def test_finished_items_of_a_child_that_ends_are_not_done_again() -> None:
    parent, again = os.getpid(), list[int]()

    def work(item: int) -> tuple[int, int]:
        if os.getpid() == parent:
            again.append(item)
            time.sleep(0.2)
        elif item > 2:
            os._exit(9)
        return item, os.getpid()

    found = forked(work, range(6))
    assert [item for item, _ in found] == list(range(6))
    assert not {1, 2} & set(again)


def test_large_results_do_not_stop_a_child() -> None:
    """While this process works on the first item, its children begin all others."""
    begun, begins = os.pipe()

    def work(item: int) -> tuple[int, bytes]:
        if item:
            os.write(begins, b"x")
        for _ in range(0 if item else 8):
            assert select.select([begun], [], [], PATIENCE)[0], "a child cannot send what it has done"
            os.read(begun, 1)
        return os.getpid(), bytes(1 << 20)

    assert os.getpid() not in [process for process, _ in forked(work, range(9))][1:]


@pytest.mark.parametrize("wrong", [None, 0, 1, 8])
def test_each_process_finishes_once(wrong: int | None, tmp_path: Path) -> None:
    """After its last item, or after an error."""
    file = tmp_path / "lines"

    def add(word: str) -> None:
        with file.open("a") as lines:
            lines.write(f"{os.getpid()} {word}\n")

    def work(item: int) -> None:
        add("item")
        if item == wrong:
            raise ValueError(item)

    with nullcontext() if wrong is None else pytest.raises(ValueError, match=str(wrong)):
        forked(work, range(9), lambda: add("end"))
    words: dict[str, list[str]] = {}
    for line in file.read_text().splitlines():
        words.setdefault(line.split()[0], []).append(line.split()[1])
    assert len(words) == 3
    assert all(each == ["item"] * (len(each) - 1) + ["end"] for each in words.values())
