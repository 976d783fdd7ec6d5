"""Divergence between and inside thread blocks, numbered barriers, spinning, the order of blocks, faults."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from bringup.compile import ptx
from tests.ptx.lanes import apply, text

REGISTERS = """.reg .pred %p<6>; .reg .b32 %r<20>; .reg .b64 %q<6>; .reg .b32 %base;
ld.param.b64 %q0, [p0]; mov.u32 %r0, %tid.x; mov.u32 %r1, %ctaid.x; mov.u32 %base, dynamic;"""
STORE = "mad.lo.s32 %r10, %r1, 128, %r0; mad.wide.s32 %q1, %r10, 4, %q0; st.global.b32 [%q1], %r9; ret;"
THREADS = np.arange(128)


def launch(body: str, blocks: int = 1, **how: object) -> np.ndarray:
    """A word of each thread of each block, which %r9 has at the label END."""
    device = ptx.Device(1 << 20)
    out = device.put(np.zeros(blocks * 128, "i4"), "out")
    program = ptx.Program(text(f"{body}\nEND: {STORE}", REGISTERS, 1))
    program.launch(device, (blocks,), [struct.pack("<Q", out)], shared=2048, **how)  # type: ignore[arg-type]
    return device.read(out, "i4", (blocks, 128))


def test_lanes_of_a_block_take_both_ways_and_meet():
    body = """mov.b32 %r9, 5; setp.lt.s32 %p0, %r0, 40; @%p0 bra LOW;
    mul.lo.s32 %r9, %r0, 3; bra END;
    LOW: sub.s32 %r9, 0, %r0;"""
    assert (launch(body)[0] == np.where(THREADS < 40, -THREADS, THREADS * 3)).all()


def test_a_loop_of_another_length_in_each_lane():
    body = """mov.b32 %r9, 0; mov.b32 %r2, 0;
    LOOP: add.s32 %r9, %r9, %r2; add.s32 %r2, %r2, 1; setp.le.s32 %p0, %r2, %r0; @%p0 bra LOOP;"""
    assert (launch(body)[0] == THREADS * (THREADS + 1) // 2).all()


def test_blocks_of_another_length_and_early_returns():
    """Blocks run in step: those that return first leave the others alone."""
    body = """mov.b32 %r9, 7; setp.eq.s32 %p0, %r1, 2; @%p0 ret; setp.ge.s32 %p1, %r0, 100; @%p1 ret;
    mov.b32 %r2, 0;
    LOOP: add.s32 %r9, %r9, 10; add.s32 %r2, %r2, 1; setp.le.s32 %p2, %r2, %r1; @%p2 bra LOOP;"""
    got = launch(body, blocks=5)
    for block in range(5):
        expected = np.where((THREADS < 100) & (block != 2), 7 + 10 * (block + 1), 0)
        assert (got[block] == expected).all()


def test_predicates_leave_other_lanes_alone():
    body = "mov.b32 %r9, 3; setp.gt.s32 %p0, %r0, 64; @%p0 mov.b32 %r9, 4; @!%p0 add.s32 %r9, %r9, %r0;"
    assert (launch(body)[0] == np.where(THREADS > 64, 4, 3 + THREADS)).all()


def test_labels_and_registers_of_a_scope_are_local():
    body = "mov.b32 %r9, 0;"
    for step in (1, 20):
        body += f"""{{ .reg .b32 %t; .reg .pred %s; mov.b32 %t, 0;
        again: add.s32 %t, %t, 1; add.s32 %r9, %r9, {step}; setp.lt.s32 %s, %t, 3; @%s bra again; }}"""
    assert (launch(body)[0] == 63).all()


EXCHANGE = """shl.b32 %r2, %r0, 2; add.s32 %r2, %r2, %base; xor.b32 %r3, %r0, {mask}; shl.b32 %r3, %r3, 2;
add.s32 %r3, %r3, %base; add.s32 %r4, %r0, 1000;"""


def test_barriers():
    body = EXCHANGE.format(mask=127) + "st.shared.b32 [%r2], %r4; bar.sync 0; ld.shared.b32 %r9, [%r3];"
    assert (launch(body, blocks=3) == 1127 - THREADS).all()


def test_halves_of_a_block_meet_at_barriers_of_their_own():
    """Barriers with a number and a count; one half passes its barrier three times, the other once."""
    body = (
        EXCHANGE.format(mask=63)
        + """st.shared.b32 [%r2], %r4; setp.lt.s32 %p0, %r0, 64; @%p0 bra LOW;
    bar.sync 2, 64; ld.shared.b32 %r9, [%r3]; bra JOIN;
    LOW: bar.sync 1, 64; bar.sync 1, 64; barrier.sync 1, 64; ld.shared.b32 %r9, [%r3];
    JOIN: bar.sync 0;"""
    )
    assert (launch(body, blocks=2) == 1000 + (THREADS ^ 63)).all()


def test_returned_threads_are_not_waited_for():
    body = "mov.b32 %r9, 1; setp.ge.s32 %p0, %r0, 96; @%p0 ret; bar.sync 0; mov.b32 %r9, 2;"
    assert (launch(body)[0] == np.where(THREADS < 96, 2, 0)).all()


def test_a_barrier_that_some_never_reach_is_a_deadlock():
    body = "mov.b32 %r9, 0; setp.lt.s32 %p0, %r0, 64; @%p0 bra LOW; bar.sync 1, 128; bra END; LOW: bar.sync 2, 128;"
    with pytest.raises(ptx.Fault, match=r"barrier \d is never reached by all threads(.|\n)*bar.sync"):
        launch(body)


def test_a_lock_that_nobody_opens_is_a_deadlock():
    body = "mov.b32 %r9, 1; SPIN: ld.acquire.gpu.global.b32 %r2, [%q0]; setp.eq.s32 %p0, %r2, 0; @%p0 bra SPIN;"
    with pytest.raises(ptx.Fault, match=r"deadlock(.|\n)*ld.acquire"):
        launch(body, max_steps=3000)


def test_a_loop_without_end_is_a_deadlock():
    with pytest.raises(ptx.Fault, match="no end after"):
        launch("mov.b32 %r9, 1; L: add.s32 %r9, %r9, 1; setp.ne.s32 %p0, %r9, 0; @%p0 bra L;", max_steps=500)


@pytest.mark.parametrize("lanes", [128, 8192])
@pytest.mark.parametrize("seed", [None, 1, 2])
def test_blocks_that_wait_for_a_later_one_get_their_turn(lanes, seed):
    """Each block waits for the flag of the next, whatever the order and however many run in step."""
    body = """mov.b32 %r9, 9; setp.ne.s32 %p1, %r0, 0; @%p1 bra END; setp.eq.s32 %p2, %r1, 5; @%p2 bra OPEN;
    mad.wide.s32 %q2, %r1, 512, %q0;
    SPIN: ld.acquire.gpu.global.b32 %r2, [%q2+512]; setp.eq.s32 %p0, %r2, 0; @%p0 bra SPIN;
    OPEN:"""
    assert (launch(body, blocks=6, lanes=lanes, seed=seed, max_steps=100_000) == 9).all()


def test_a_seed_permutes_atomics():
    body = "atom.global.add.u32 %r9, [%q0+4096], 1;"
    registers = REGISTERS

    def order(seed: int | None) -> np.ndarray:
        device = ptx.Device(1 << 20)
        out = device.put(np.zeros(2048, "i4"), "out")
        ptx.Program(text(f"{body} {STORE}", registers, 1)).launch(device, (2,), [struct.pack("<Q", out)], seed=seed)
        return device.read(out, "i4", (256,))

    assert (order(None) == np.arange(256)).all()
    assert (order(3) != np.arange(256)).any()
    assert (np.sort(order(3)) == np.arange(256)).all()
    assert (order(3) == order(3)).all()


def test_trap_is_a_fault_of_the_lanes_that_reach_it():
    body = "mov.b32 %r9, 0; setp.ne.s32 %p0, %r0, 70; @%p0 bra END; trap;"
    with pytest.raises(ptx.Fault, match=r"trap(.|\n)*block 0 thread 70$"):
        launch(body)


def test_an_access_out_of_bounds_names_the_instruction():
    with pytest.raises(ptx.Fault, match=r"out(.|\n)*ld.global.b32 %r9, \[%q1\+4\]"):
        launch("mad.wide.s32 %q1, %r0, 4, %q0; ld.global.b32 %r9, [%q1+4];")
    with pytest.raises(ptx.Fault, match=r"ld\.shared\.b32"):
        launch("ld.shared.b32 %r9, [%base+2048];")


def test_arguments_are_checked():
    program, device = ptx.Program(text("ret;", "", 1)), ptx.Device(1 << 16)
    with pytest.raises(ptx.Fault, match="0 arguments, but 1 parameters"):
        program.launch(device, (1,), [])
    with pytest.raises(ptx.Fault, match="argument 0 has 4 bytes, its parameter 8"):
        program.launch(device, (1,), [b"abcd"])
    with pytest.raises(ptx.Fault, match="a grid has"):
        program.launch(device, (0,), [bytes(8)])


def test_a_register_that_nothing_has_set_is_not_zero():
    """It has all bits set: NaN as a float, -1 as an integer."""
    assert (apply("or.b32 %d, %never, 0;", "i4", np.zeros(4, "i4"), extra=".reg .b32 %never;") == -1).all()
    assert np.isnan(apply("add.f32 %d, %never, %x0;", "f4", np.zeros(4, "f4"), extra=".reg .b32 %never;")).all()


def test_tables_and_local_memory():
    body = """.local .align 8 .b8 depot[16]; .reg .b64 %l; .reg .b32 %k; and.b32 %k, %x0, 3;
    mad.wide.s32 %at0, %k, 4, table; ld.global.b32 %k, [%at0]; mov.u64 %l, depot; st.local.b32 [%l+4], %k;
    ld.local.b32 %d, [%l+4];"""
    program = text(
        f"ld.param.b64 %q0, [p0]; mov.u32 %x0, %tid.x; {body} mad.wide.s32 %at0, %x0, 4, %q0;"
        "st.global.b32 [%at0], %d; ret;",
        ".reg .b32 %x0; .reg .b32 %d; .reg .b64 %at0; .reg .b64 %q0;",
        1,
    ).replace(".visible .entry", ".global .align 4 .b32 table[4] = {10, 20, 30, 0x28};\n.visible .entry")
    device = ptx.Device(1 << 16)
    out = device.alloc(512, "out")
    ptx.Program(program).launch(device, (1,), [struct.pack("<Q", out)])
    assert (device.read(out, "i4", (128,)) == np.resize([10, 20, 30, 40], 128)).all()


THROUGH_GLOBAL = """add.s32 %r3, %r0, 1; mul.wide.s32 %q2, %r0, 4; add.s64 %q3, %q0, %q2; st.global.b32 [%q3], %r3;
bar.sync 0;
xor.b32 %r2, %r0, 32; mul.wide.s32 %q2, %r2, 4; add.s64 %q4, %q0, %q2; ld.global.b32 %r9, [%q4];
bar.sync 0;"""


def test_warps_in_turns():
    """What a warp reads of another's store through global memory needs the barrier; in step it does not show."""
    wanted = (THREADS ^ 32) + 1
    turns = [{"in_turns": True, "seed": seed} for seed in range(3)]
    for how in ({}, {"in_turns": True}, *turns):
        assert (launch(THROUGH_GLOBAL, **how)[0] == wanted).all()
    without = THROUGH_GLOBAL.replace("bar.sync 0;", "", 1)
    assert (launch(without)[0] == wanted).all()
    for how in ({"in_turns": True}, *turns):
        wrong = launch(without, **how)[0] != wanted
        assert wrong.sum() == 64  # of each two warps one comes first, and reads what was there before
