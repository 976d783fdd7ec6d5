"""Observers, on hand-written PTX whose counts are known."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from bringup.compile import ptx
from tests.ptx.by_hand import STORE, program, run

SHARED = "shl.b32 %r3, %r1, 2; add.s32 %r5, %r4, %r3;"


@pytest.mark.parametrize(("stride", "wavefronts"), [(4, 1), (8, 2), (16, 4), (64, 16), (128, 32), (132, 1)])
def test_bank_conflicts_by_stride(stride, wavefronts):
    """Lanes 4 bytes apart hit 32 banks; 128 bytes apart one bank."""
    body = f"and.b32 %r3, %r1, 31; mul.lo.s32 %r3, %r3, {stride}; add.s32 %r5, %r4, %r3; st.shared.b32 [%r5], %r1; ret;"
    (use,) = run(body, watch=[ptx.Banks()])[1].banks
    assert (use.requests, use.wavefronts, use.minimum) == (4, 4 * wavefronts, 4)
    assert "st.shared.b32" in str(use)


def test_wide_accesses_are_served_in_parts():
    """16 bytes a lane: 512 bytes of a warp in 4 wavefronts, the fewest."""
    body = "shl.b32 %r3, %r1, 4; add.s32 %r5, %r4, %r3; st.shared.v4.b32 [%r5], {%r1, %r1, %r1, %r1}; ret;"
    (use,) = run(body, watch=[ptx.Banks()])[1].banks
    assert (use.requests, use.wavefronts, use.minimum) == (4, 16, 16)


@pytest.mark.parametrize(("stride", "sectors"), [(4, 4), (8, 8), (32, 32), (0, 1)])
def test_sectors_by_stride(stride, sectors):
    body = f"mul.wide.s32 %rd3, %r1, {stride}; add.s64 %rd3, %rd3, %rd1; ld.global.b32 %r9, [%rd3]; ret;"
    _, done = run(body, blocks=8, watch=[ptx.Bytes()])
    (access,) = done.bytes.accesses
    assert access.buffer == "out"
    assert (access.requests, access.sectors_per_request) == (32, sectors)
    assert done.bytes.read == (128 * 4 if stride else 4)
    assert (done.bytes.written, done.bytes.requested) == (0, 8 * 128 * 4)


def races(body: str, **how: object) -> dict[str, ptx.Run]:
    _, done = run(body, watch=[ptx.Races()], **how)
    return {race.kind: race for race in done.races}


READ_OTHER_WARP = "xor.b32 %r6, %r3, 256; add.s32 %r6, %r4, %r6; ld.shared.b32 %r9, [%r6];"


def test_a_missing_barrier_is_a_race():
    """The value is right, as warps run in step here; on hardware it need not be."""
    found = races(f"{SHARED} st.shared.b32 [%r5], %r1; {READ_OTHER_WARP}{STORE}")
    assert set(found) == {"read after write"}
    assert "ld.shared.b32 %r9" in str(found["read after write"])
    assert found["read after write"].count == 128


def test_a_barrier_orders():
    assert races(f"{SHARED} st.shared.b32 [%r5], %r1; bar.sync 0; {READ_OTHER_WARP}{STORE}") == {}


def test_overwriting_what_another_warp_reads_is_a_race():
    body = f"{SHARED} st.shared.b32 [%r5], %r1; bar.sync 0; {READ_OTHER_WARP} st.shared.b32 [%r5], %r9;{STORE}"
    assert set(races(body)) == {"write after read"}


def test_a_barrier_of_some_warps_orders_only_them():
    """Warps 0 and 1 meet at barrier 1, warps 2 and 3 at barrier 2; each reads the other pair's words."""
    meet = "setp.lt.s32 %p1, %r1, 64; @%p1 bra A; bar.sync 2, 64; bra J;\nA: bar.sync 1, 64;\nJ:"
    body = f"{SHARED} st.shared.b32 [%r5], %r1; {meet} {READ_OTHER_WARP}{STORE}"
    assert set(races(body)) == {"read after write"}
    near = READ_OTHER_WARP.replace("256", "128")
    assert races(body.replace(READ_OTHER_WARP, near)) == {}


def test_unwritten_bytes_are_reported():
    found = races(f"{SHARED} ld.shared.b32 %r9, [%r5];{STORE}")
    assert set(found) == {"read of bytes never written"}
    assert run(f"{SHARED} ld.shared.b32 %r9, [%r5];{STORE}")[0].tolist() == [-1] * 128


def test_equal_values_are_reported_apart():
    same = races(f"mov.b32 %r9, 5; st.shared.b32 [%r4], %r9;{STORE}")
    assert [race.harmless for race in same.values()] == [True]
    other = races(f"mov.b32 %r9, 5; st.shared.b32 [%r4], %r1;{STORE}")
    assert "write after write" in other


def test_asynchronous_copies_are_done_at_the_latest_or_earliest_moment():
    """Without a wait the copy has not arrived at the latest moment; at the earliest it has."""
    body = (
        f"{SHARED} mad.wide.s32 %rd3, %r1, 4, %rd1; cp.async.ca.shared.global [%r5], [%rd3], 4; cp.async.commit_group;"
    )
    read = f" ld.shared.b32 %r9, [%r5]; bar.sync 0;{STORE}"
    assert set(run(body + read)[0]) == {-1}
    assert set(run(body + read, copies="earliest")[0]) == {0}
    assert set(run(body + "cp.async.wait_group 0;" + read)[0]) == {0}
    assert set(run(body + "cp.async.wait_group 1;" + read)[0]) == {-1}


PUBLISH = """
mov.b32 %r9, 0; setp.eq.s32 %p1, %r1, 0; setp.eq.s32 %p2, %r2, 0; @!%p2 bra W;
st.global.b32 [%rd1+{data}], %r1; {barrier}
@%p1 atom.global.{release}.add.u32 %r6, [%rd1], 1; ret;
W: @%p1 atom.global.{acquire}.add.u32 %r7, [%rd1], 0; @!%p1 mov.b32 %r7, 1;
setp.eq.s32 %p3, %r7, 0; @%p3 bra W; {barrier}
ld.global.b32 %r9, [%rd1+{data}]; ret;"""


def order(**settings: str) -> set[str]:
    given = {"data": "256", "barrier": "bar.sync 0;", "release": "release.gpu", "acquire": "acquire.gpu", **settings}
    _, done = run(PUBLISH.format(**given), blocks=2, watch=[ptx.Order()], max_steps=2000)
    return {found.kind for found in done.order}


def test_release_and_acquire_order_blocks():
    assert order() == set()


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        ({"release": "relaxed.gpu"}, "another block's store read without its release"),
        ({"acquire": "relaxed.gpu"}, "another block's store read without an acquire"),
        ({"barrier": ""}, "another block's store read without its release"),
        ({"release": "release.cta"}, "another block's store read without its release"),
    ],
)
def test_a_weaker_order_is_found(settings, kind):
    assert kind in order(**settings)


def test_two_blocks_that_write_one_place_are_found():
    _, done = run("st.global.b32 [%rd1], %r2; ret;", blocks=2, watch=[ptx.Order()])
    (found,) = done.order
    assert found.kind == "two blocks write one place without an order"
    assert "out + 0" in str(found)


def test_the_last_store_of_a_byte_may_be_atomic():
    device = ptx.Device(1 << 20)
    out = device.put(np.zeros(128, np.int32), "out")
    watched = ptx.LastStore(out)
    body = "mov.b32 %r9, 1; atom.global.add.u32 %r6, [%rd1], 1; ret;"
    program(body).launch(device, (1,), [struct.pack("<Q", out)], shared=64, watch=[watched])
    assert "block (0, 0, 0)" in str(watched.result())
    assert "atom.global.add" in str(watched.result())


LOAD_FIRST = "mad.wide.s32 %rd3, %r1, {size}, %rd1; ld.global.{load} [%rd3];"


@pytest.mark.parametrize("lanes", [128, 8192])
@pytest.mark.parametrize(("size", "load"), [(4, "b32 %r9,"), (16, "v4.b32 {%r9, %r10, %r11, %r12},")])
def test_a_store_over_what_other_blocks_read_is_found(size, load, lanes):
    """All blocks read the words of block 0, and each stores its own: in step all read before any stores."""
    body = LOAD_FIRST.replace("{size}", str(size)).replace("{load}", load) + STORE
    _, done = run(body, blocks=4, watch=[ptx.Order()], lanes=lanes)
    kinds = {found.kind for found in done.order}
    assert kinds == ({"a store over what another block reads without an order"} if lanes == 8192 else kinds)
    assert kinds
    own = "mad.lo.s32 %r20, %r2, 128, %r1; mad.wide.s32 %rd3, %r20, 4, %rd1; ld.global.b32 %r9, [%rd3];"
    assert run(own + STORE, blocks=4, watch=[ptx.Order()], lanes=lanes)[1].order == ()


@pytest.mark.parametrize(("release", "found"), [("acq_rel.gpu", False), ("relaxed.gpu", True)])
def test_the_last_block_stores_over_what_all_have_read(release, found):
    body = f"""
mad.wide.s32 %rd3, %r1, 4, %rd1; ld.global.b32 %r9, [%rd3+512]; bar.sync 0;
setp.eq.s32 %p1, %r1, 0; mov.b32 %r6, 0; @%p1 atom.global.{release}.add.u32 %r6, [%rd1], 1;
@%p1 st.shared.b32 [%r4], %r6; bar.sync 0; ld.shared.b32 %r6, [%r4];
setp.eq.s32 %p2, %r6, 3; @%p2 st.global.b32 [%rd3+512], %r1; ret;"""
    _, done = run(body, blocks=4, watch=[ptx.Order()])
    kinds = {each.kind for each in done.order}
    assert kinds == ({"a store over what another block reads without an order"} if found else set())


WAIT = "griddepcontrol.wait;"
READ = "mul.wide.s32 %rd3, %r1, 4; add.s64 %rd3, %rd3, %rd1; ld.global.b32 %r9, [%rd3];"
WRITE = "mul.wide.s32 %rd3, %r1, 4; add.s64 %rd3, %rd3, %rd1; st.global.b32 [%rd3], %r1;"


def early(body: str, fixed: bool | np.ndarray) -> tuple[str, ...]:
    """What `Early` finds in a kernel of one block over 128 numbers, of which launches before write those not fixed."""
    device = ptx.Device(1 << 16)
    out = device.alloc(4 * 128, "out")
    watch = ptx.Early(device)
    watch.mark(out, fixed, 4 * 128)
    done = program(body).launch(device, (1,), [struct.pack("<Q", out)], watch=[watch])
    return tuple(map(str, done.early))


@pytest.mark.parametrize(
    ("body", "fixed", "count"),
    [
        (f"{READ} {WAIT} ret;", False, 128),
        (f"{READ} {WAIT} ret;", True, 0),
        (f"{READ} {WAIT} ret;", np.arange(4 * 128) != 77, 1),
        (f"{WRITE} {WAIT} ret;", True, 128),
        (f"{WAIT} {READ} {WRITE} ret;", False, 0),
        (f"setp.lt.s32 %p1, %r1, 32; @%p1 bra $WAITED; {READ} $WAITED: {WAIT} ret;", False, 96),
        (f"{READ} {WRITE} ret;", False, 0),  # it does not wait, so it does not start early
    ],
)
def test_accesses_before_the_wait(body, fixed, count):
    """A kernel that starts early touches nothing that the launch before may write."""
    found = early(body, fixed)
    assert bool(found) == bool(count)
    assert all(f"; {count} accesses, first in block 0 at out" in each for each in found)
