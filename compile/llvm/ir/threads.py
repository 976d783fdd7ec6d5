# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false
"""The functions that run a step: a list of launches, each divided into parts that the running threads claim in turn.

A launch ends when its last part has ended. A thread that has lost its processor delays the others only if it has begun
a part (self-scheduling of loops, Tang and Yew 1986). One atomic word, TURN, contains the number of the current launch
and how many of its parts are not claimed. A thread claims a part by a compare-and-swap that decrements the word: so a
late thread claims a part of the current launch, or none. The thread that ends the last part begins the next launch.

A thread that finds no part reads the word for a while, then sleeps until it is woken, so that other processes can use
its processor. TURN is stored before the number of sleepers is read, and a sleeper is counted before it reads TURN,
both sequentially consistent. So no thread misses a wake-up.
"""

from __future__ import annotations

from enum import IntEnum

from llvmlite import ir

from bringup.compile.llvm.ir.dtypes import I32, I64, NOTHING, POINTER
from bringup.compile.llvm.ir.emitter import KERNEL, Emitter, Value
from bringup.compile.llvm.ir.machine import Machine

STEP, WORK, END = "bringup_step", "bringup_work", "bringup_end"
_RUN, _WAIT, _BEGIN, _WAKE = "bringup_run", "bringup_wait", "bringup_begin", "bringup_wake"
_LIBRARY = {  # functions of POSIX threads, and the number of their arguments
    **dict.fromkeys(("pthread_mutex_lock", "pthread_mutex_unlock", "pthread_cond_broadcast"), 1),
    "pthread_cond_wait": 2,
}
LAUNCH = 3  # words of a launch: the addresses of a kernel and of its arguments, and the number of parts
PARTS = 16  # bits of TURN that count parts; the other bits number the launches of all steps
MOST_PARTS = (1 << PARTS) - 1
_ENDED = -(1 << PARTS)  # TURN after the last step


class Word(IntEnum):
    """Offsets in a job's memory, in 8-byte words. Words that threads write are 64 bytes apart."""

    LAUNCHES, COUNT, SPINS, MUTEX, CONDITION, SCRATCH, SCRATCH_SIZE, FIRST = range(8)
    TURN, DONE, SLEEPERS = 16, 24, 32


WORDS = 40  # of a job


def define_threads(module: ir.Module, machine: Machine) -> None:
    """Defines `STEP(job)`, which runs a step with the workers in `WORK(job, thread)`. These return after `END(job)`.

    The word LAUNCHES is the address of COUNT · LAUNCH words.
    """
    for name, count in _LIBRARY.items():
        ir.Function(module, ir.FunctionType(I32, [POINTER] * count), name)

    def function(name: str, words: int = 0) -> Emitter:
        return Emitter(module, name, machine, ir.FunctionType(NOTHING, [POINTER, *[I64] * words]))

    _define_wake(function(_WAKE))
    _define_wait(function(_WAIT, 1))
    _define_begin(function(_BEGIN, 2))
    _define_run(function(_RUN, 2))
    _define_step(function(STEP))
    work, end = function(WORK, 1), function(END)
    work.b.call(module.get_global(_RUN), [*work.function.args, I64(_ENDED)])
    end.b.atomic_rmw("xchg", _place(end, end.function.args[0], Word.TURN), I64(_ENDED), "seq_cst")
    end.b.call(module.get_global(_WAKE), end.function.args)
    for each in (work, end):
        each.finish()


def _define_step(e: Emitter) -> None:
    b, (job,) = e.b, e.function.args
    first, count = b.lshr(_read_now(e, job, Word.TURN), I64(PARTS)), _read(e, job, Word.COUNT)
    b.store(first, _place(e, job, Word.FIRST), align=8)
    with b.if_then(b.icmp_unsigned("!=", count, I64(0))):
        b.call(e.module.get_global(_BEGIN), [job, I64(0), I64(0)])
        b.call(e.module.get_global(_RUN), [job, I64(0), b.shl(b.add(first, count), I64(PARTS))])
    e.finish()


def _define_begin(e: Emitter) -> None:
    """`(job, launch, thread)` begins a launch of the step. After the last one it wakes thread 0, which waits for it.

    If a launch has one part, no other thread is woken for it.
    """
    b, (job, launch, thread) = e.b, e.function.args
    is_last = b.icmp_unsigned("==", launch, _read(e, job, Word.COUNT))
    generation = b.shl(b.add(_read(e, job, Word.FIRST), launch), I64(PARTS))
    with b.if_else(is_last) as (last, others):
        with last:
            b.atomic_rmw("xchg", _place(e, job, Word.TURN), generation, "seq_cst")
            with b.if_then(b.icmp_unsigned("!=", thread, I64(0))):
                b.call(e.module.get_global(_WAKE), [job])
        with others:
            parts = _of_launch(e, job, launch)[2]
            b.atomic_rmw("xchg", _place(e, job, Word.TURN), b.or_(generation, parts), "seq_cst")
            with b.if_then(b.icmp_unsigned(">", parts, I64(1))):
                b.call(e.module.get_global(_WAKE), [job])
    e.finish()


def _define_run(e: Emitter) -> None:
    """`(job, thread, until)` runs parts until TURN equals `until`."""
    b, (job, thread, until) = e.b, e.function.args
    again, none, wait, some, taken, done = (
        e.function.append_basic_block(name) for name in ("again", "none", "wait", "some", "taken", "done")
    )
    scratch, size = b.inttoptr(_read(e, job, Word.SCRATCH), POINTER), _read(e, job, Word.SCRATCH_SIZE)
    own = b.gep(scratch, [b.mul(thread, size)], source_etype=ir.IntType(8))
    b.branch(again)
    b.position_at_end(again)
    turn = _read_now(e, job, Word.TURN)
    left = b.and_(turn, I64((1 << PARTS) - 1))
    b.cbranch(b.icmp_unsigned("==", left, I64(0)), none, some)
    b.position_at_end(none)
    b.cbranch(b.icmp_unsigned("==", turn, until), done, wait)
    b.position_at_end(wait)
    b.call(e.module.get_global(_WAIT), [job, turn])
    b.branch(again)
    b.position_at_end(some)
    swap = b.cmpxchg(_place(e, job, Word.TURN), turn, b.sub(turn, I64(1)), "acq_rel", "monotonic")
    b.cbranch(b.extract_value(swap, 1), taken, again)
    b.position_at_end(taken)
    launch = b.sub(b.lshr(turn, I64(PARTS)), _read(e, job, Word.FIRST))
    kernel, arguments, parts = _of_launch(e, job, launch)
    function = b.inttoptr(kernel, ir.PointerType(KERNEL))  # a call needs the function type
    b.call(function, [b.inttoptr(arguments, POINTER), b.sub(parts, left), parts, own])
    before = b.atomic_rmw("add", _place(e, job, Word.DONE), I64(1), "acq_rel")
    with b.if_then(b.icmp_unsigned("==", b.add(before, I64(1)), parts)):
        b.atomic_rmw("xchg", _place(e, job, Word.DONE), I64(0), "monotonic")
        b.call(e.module.get_global(_BEGIN), [job, b.add(launch, I64(1)), thread])
    b.branch(again)
    b.position_at_end(done)
    e.finish()


def _of_launch(e: Emitter, job: Value, launch: Value) -> tuple[Value, Value, Value]:
    """The words of a launch; they are valid while it runs."""
    b = e.b
    launches, at = b.inttoptr(_read(e, job, Word.LAUNCHES), POINTER), b.mul(launch, I64(LAUNCH))
    kernel, arguments, parts = (
        b.load(b.gep(launches, [b.add(at, I64(n))], source_etype=I64), typ=I64, align=8) for n in range(LAUNCH)
    )
    return kernel, arguments, parts


def _define_wake(e: Emitter) -> None:
    b, (job,) = e.b, e.function.args
    with b.if_then(b.icmp_unsigned("!=", _read_now(e, job, Word.SLEEPERS), I64(0))):
        _library(e, job, "pthread_mutex_lock", Word.MUTEX)
        _library(e, job, "pthread_cond_broadcast", Word.CONDITION)
        _library(e, job, "pthread_mutex_unlock", Word.MUTEX)
    e.finish()


def _define_wait(e: Emitter) -> None:
    """`(job, turn)` waits until TURN differs from `turn`: reads it SPINS times, and then sleeps."""
    b, (job, turn) = e.b, e.function.args
    before = b.block
    read, pause, sleep, asleep, again, awake, done = (
        e.function.append_basic_block(name) for name in ("read", "pause", "sleep", "asleep", "again", "awake", "done")
    )
    most = _read(e, job, Word.SPINS)
    b.branch(read)
    b.position_at_end(read)
    spins = b.phi(I64)
    spins.add_incoming(I64(0), before)
    b.cbranch(_is_other(e, job, turn), done, pause)
    b.position_at_end(pause)
    _pause(e)
    more = b.add(spins, I64(1))
    spins.add_incoming(more, pause)
    b.cbranch(b.icmp_unsigned("<", more, most), read, sleep)
    b.position_at_end(sleep)
    _library(e, job, "pthread_mutex_lock", Word.MUTEX)
    b.atomic_rmw("add", _place(e, job, Word.SLEEPERS), I64(1), "seq_cst")
    b.branch(asleep)
    b.position_at_end(asleep)
    b.cbranch(_is_other(e, job, turn), awake, again)
    b.position_at_end(again)
    _library(e, job, "pthread_cond_wait", Word.CONDITION, Word.MUTEX)
    b.branch(asleep)
    b.position_at_end(awake)
    b.atomic_rmw("sub", _place(e, job, Word.SLEEPERS), I64(1), "seq_cst")
    _library(e, job, "pthread_mutex_unlock", Word.MUTEX)
    b.branch(done)
    b.position_at_end(done)
    e.finish()


def _is_other(e: Emitter, job: Value, turn: Value) -> Value:
    return e.b.icmp_unsigned("!=", _read_now(e, job, Word.TURN), turn)


def _pause(e: Emitter) -> None:
    """A hint to the processor that this is a spin-wait loop."""
    if e.machine.is_x86:
        e.intrinsic("llvm.x86.sse2.pause", NOTHING, [])
    elif e.machine.triple.startswith(("aarch64", "arm64")):
        e.intrinsic("llvm.aarch64.hint", NOTHING, [I32(1)])


def _library(e: Emitter, job: Value, name: str, *words: Word) -> None:
    e.b.call(e.module.get_global(name), [e.b.inttoptr(_read(e, job, word), POINTER) for word in words])


def _place(e: Emitter, job: Value, word: Word) -> Value:
    return e.b.gep(job, [I64(int(word))], source_etype=I64)


def _read(e: Emitter, job: Value, word: Word) -> Value:
    return e.b.load(_place(e, job, word), typ=I64, align=8)


def _read_now(e: Emitter, job: Value, word: Word) -> Value:
    """A sequentially consistent load."""
    return e.b.load_atomic(_place(e, job, word), "seq_cst", 8, typ=I64)
