"""Device memory: every access is checked, and a fault names the buffer, the byte, the lanes and the PTX."""

from __future__ import annotations

import numpy as np
import pytest

from bringup.compile import ptx
from tests.ptx.by_hand import STORE, program, run


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("[%rd1+512]", r"out of bounds store of 4 bytes at out \+ 512 \(of 512 bytes\); 128 lanes"),
        ("[%rd1+-4]", "(out of bounds|misaligned) store of 4 bytes at 0x.*, which is no device address"),
        ("[%rd1+2]", r"misaligned store of 4 bytes at out \+ 2 \(of 512 bytes\)"),
        ("[%rd1+511]", r"misaligned store of 4 bytes at out \+ 511"),
    ],
)
def test_a_store_outside_is_a_fault(address, message):
    with pytest.raises(ptx.Fault, match=message) as caught:
        run(f"st.global.b32 {address}, %r1; ret;")
    assert "st.global.b32" in str(caught.value)
    assert "block 0 thread 0" in str(caught.value)


def test_only_the_lanes_outside_are_named():
    """Lane 127 is the only one past the end."""
    with pytest.raises(ptx.Fault, match="; 1 lanes") as caught:
        run("mad.wide.s32 %rd2, %r1, 4, %rd1; ld.global.b32 %r9, [%rd2+4]; ret;")
    assert "block 0 thread 127" in str(caught.value)


def test_masked_lanes_may_have_any_address():
    out, _ = run("setp.lt.s32 %p1, %r1, 4; mul.wide.s32 %rd3, %r1, 4096; add.s64 %rd3, %rd3, %rd1;"
                 "mov.b32 %r9, 7; and.b32 %r5, %r1, 0; @!%p1 bra E; mad.wide.s32 %rd3, %r5, 4, %rd1;"
                 "ld.global.b32 %r9, [%rd3];\nE:" + STORE)  # fmt: skip
    assert out.tolist() == [0] * 4 + [7] * 124


@pytest.mark.parametrize(
    ("offset", "message"),
    [("8192", r"out of bounds store of 4 bytes at shared memory \+ 8192"), ("2", r"misaligned .* shared memory \+ 2")],
)
def test_shared_memory_has_bounds(offset, message):
    with pytest.raises(ptx.Fault, match=message):
        run(f"st.shared.b32 [%r4+{offset}], %r1; ret;")


def test_use_after_free_is_named():
    device = ptx.Device(1 << 20)
    address = device.put(np.zeros(128, np.int32), "weights")
    device.free(address)
    with pytest.raises(ptx.Fault, match=r"weights \+ 0, which was freed"):
        program("ld.global.b32 %r9, [%rd1]; ret;").launch(device, (1,), [address.to_bytes(8, "little")], shared=64)
    with pytest.raises(ptx.Fault, match="which was freed, not the begin of an allocation"):
        device.free(address)


def test_the_host_has_bounds_too():
    device = ptx.Device(1 << 16)
    address = device.put(np.arange(4, dtype=np.int32), "x")
    assert device.read(address + 4, np.int32, (2,)).tolist() == [1, 2]
    with pytest.raises(ptx.Fault, match=r"read of 20 bytes by the host at x \+ 0 \(of 16 bytes\): out of bounds"):
        device.read(address, np.int32, (5,))
    with pytest.raises(ptx.Fault, match="out of bounds"):
        device.write(address + 8, np.zeros(4, np.int32))


def test_new_memory_is_poisoned_and_freed_memory_is_reused_last():
    device = ptx.Device(1 << 16)
    first = device.alloc(1 << 14, "first")
    assert np.isnan(device.read(first, np.float32, (8,))).all()
    device.free(first)
    second = device.alloc(1 << 14, "second")
    assert second > first
    third = device.alloc(1 << 14, "third")
    assert device.alloc(1 << 14, "fourth") == first
    assert sorted([first, second, third]) == [first, second, third]
    with pytest.raises(MemoryError, match="no room"):
        device.alloc(1 << 16)


@pytest.mark.parametrize(
    ("operation", "value", "initial", "expected"),
    [
        ("add.u32", "%r1", 5, 5 + sum(range(128))),
        ("add.f32", "0f3F800000", 0, int(np.float32(128).view(np.int32))),
        ("max.s32", "%r1", -7, 127),
        ("min.s32", "%r1", -7, -7),
        ("min.u32", "%r1", -7, 0),
        ("xor.b32", "%r1", 0, 0),
        ("or.b32", "%r1", 0, 127),
        ("inc.u32", "99", 0, 128 % 100),
        ("dec.u32", "99", 0, 72),
        ("exch.b32", "3", 0, 3),
    ],
)
def test_atomics_serve_every_lane(operation, value, initial, expected):
    """All 128 lanes on one word, in any order."""
    for seed in (None, 1):
        start = np.full(128, initial, np.int32)
        out, _ = run(f"mov.b32 %r5, {value}; atom.global.{operation} %r6, [%rd1], %r5; ret;", initial=start, seed=seed)
        assert out[0] == expected


def test_compare_and_swap_lets_one_lane_win():
    body = "atom.global.cas.b32 %r9, [%rd1+512], -5, %r1; bar.sync 0;" + STORE
    out, _ = run(body, initial=np.concatenate([np.zeros(128, np.int32), [np.int32(-5)]]))
    assert (out[:128] == -5).sum() == 1
    assert out[128] == int(np.flatnonzero(out[:128] == -5)[0])


@pytest.mark.parametrize(("kind", "one"), [("f16", 0x3C00), ("bf16", 0x3F80)])
def test_packed_atomics_add_each_half(kind, one):
    """128 times (1, 2): exact in both formats."""
    two = {"f16": 0x4000, "bf16": 0x4000}[kind]
    body = f"mov.b32 %r5, {two << 16 | one}; atom.global.add.noftz.{kind}x2 %r6, [%rd1], %r5; ret;"
    out, _ = run(body, initial=np.zeros(128, np.int32))
    low, high = {"f16": (0x5800, 0x5C00), "bf16": (0x4300, 0x4380)}[kind]  # 128, 256
    assert int(out[0]) == high << 16 | low
