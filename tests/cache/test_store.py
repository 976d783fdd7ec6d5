"""Entries come back as they were put, or not at all."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from bringup.compile.cache.store import Store, key_of

INPUTS = {"source": "abc", "tools": "torch 2"}


@pytest.fixture
def store(tmp_path) -> Store:
    return Store(tmp_path / "store")


def put(store: Store, payload: bytes, **inputs: str) -> None:
    store.put("stage", INPUTS | inputs, payload, what="a stage", seconds=1.25)


def test_what_was_put_is_found_by_equal_inputs_only(store):
    put(store, b"one\ntwo\n")
    assert store.get("stage", dict(reversed(INPUTS.items()))) == b"one\ntwo\n"
    assert store.get("stage", INPUTS | {"tools": "torch 3"}) is None
    assert store.get("module", INPUTS) is None
    (entry,) = store.entries()
    assert (entry.kind, entry.key, entry.what, entry.seconds) == ("stage", key_of(INPUTS), "a stage", 1.25)
    assert entry.inputs == INPUTS


def test_every_damage_makes_an_entry_absent(store):
    payload = b"payload of some length"
    put(store, payload)
    path = store.root / "stage" / key_of(INPUTS)
    whole = path.read_bytes()
    for at in range(len(whole)):
        path.write_bytes(whole[:at])
        assert store.get("stage", INPUTS) is None, at
        damaged = bytes([whole[at] ^ 0x40])
        path.write_bytes(whole[:at] + damaged + whole[at + 1 :])
        got = store.get("stage", INPUTS)
        assert got is None or got == payload, at  # its time or its title may be wrong, its payload never
    assert len(list(store.entries())) <= 1


def test_a_store_that_cannot_be_written_loses_nothing_but_time(tmp_path):
    (tmp_path / "file").write_text("")
    store = Store(tmp_path / "file" / "store")
    put(store, b"x")
    assert store.get("stage", INPUTS) is None
    assert "ot a directory" in store.problem


def test_the_entries_used_longest_ago_make_room(store):
    for index in range(6):
        put(store, bytes(100_000), tools=str(index))
        path = store.root / "stage" / key_of(INPUTS | {"tools": str(index)})
        os.utime(path, (time.time() - 1000 + index, time.time() - 1000 + index))
    assert store.get("stage", INPUTS | {"tools": "0"}) is not None  # used now
    store.trim(limit=350_000)
    assert {entry.inputs["tools"] for entry in store.entries()} == {"0", "5", "4"}


def test_what_killed_writers_left_is_removed_after_an_hour(store):
    put(store, b"x")
    left, young = store.root / "stage" / ".left", store.root / "stage" / ".young"
    left.write_bytes(b"half")
    young.write_bytes(b"half")
    os.utime(left, (0, 0))
    store.trim()
    assert (left.exists(), young.exists()) == (False, True)


def test_many_writers_and_readers_share_a_store(store):
    """Four processes and their threads write, read and remove the same entries: a reader gets all of one, or none."""
    code = """
import sys
from pathlib import Path
from bringup.compile.cache.store import Store
store = Store(Path(sys.argv[1]))
for turn in range(150):
    inputs = {"n": str(turn % 5)}
    got = store.get("stage", inputs)
    assert got is None or got == bytes(inputs["n"], "ascii") * 5000
    store.put("stage", inputs, bytes(inputs["n"], "ascii") * 5000, what="w", seconds=0)
    if turn % 30 == 0:
        store.remove(list(store.entries())[:2])
print(store.problem)
"""

    def process(_: int) -> str:
        done = subprocess.run(
            [sys.executable, "-c", code, str(store.root)], capture_output=True, text=True, check=False
        )
        return done.stdout + done.stderr

    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(process, range(4))) == {"\n"}
    assert not list(store.root.glob("*/.*"))
