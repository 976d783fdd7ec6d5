# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false
"""The functions that run a step: every thread goes through the same list of launches, and waits after each for all.

Who waits reads one word for a while, then sleeps until it is woken: where threads outnumber processors, those that have
work get them. The generation of the barrier is stored before the number of sleepers is read, and a sleeper is counted
before it reads the generation, both in one order for all threads; so nobody sleeps through a wake.
"""

from __future__ import annotations

from enum import IntEnum

from llvmlite import ir

from bringup.compile.llvm.ir.emitter import I32, I64, KERNEL, NOTHING, POINTER, Emitter, Value
from bringup.compile.llvm.ir.machine import Machine

STEP, WORK = "bringup_step", "bringup_work"
_RUN, _WAIT = "bringup_run", "bringup_wait"
_LIBRARY = {  # of POSIX threads
    **dict.fromkeys(("pthread_mutex_lock", "pthread_mutex_unlock", "pthread_cond_broadcast"), 1),
    "pthread_cond_wait": 2,
}


class Word(IntEnum):
    """Words of 8 bytes of a job's memory; those that threads write are 64 bytes apart."""

    LAUNCHES, COUNT, THREADS, SPINS, STOP, MUTEX, CONDITION, SCRATCH, SCRATCH_SIZE = range(9)
    ARRIVED, GENERATION, SLEEPERS = 16, 24, 32


WORDS = 40  # of a job


def define_threads(module: ir.Module, machine: Machine) -> None:
    """`STEP(job)` runs a step with the workers that are in `WORK(job, thread)`, which return once STOP is set.

    LAUNCHES are COUNT pairs of addresses: a kernel and its arguments.
    """
    for name, count in _LIBRARY.items():
        ir.Function(module, ir.FunctionType(I32, [POINTER] * count), name)
    _define_wait(Emitter(module, _WAIT, machine, ir.FunctionType(NOTHING, [POINTER])))
    _define_run(Emitter(module, _RUN, machine, ir.FunctionType(NOTHING, [POINTER, I64])))
    step = Emitter(module, STEP, machine, ir.FunctionType(NOTHING, [POINTER]))
    job = step.function.args[0]
    step.b.call(module.get_global(_WAIT), [job])
    step.b.call(module.get_global(_RUN), [job, I64(0)])
    step.finish()
    _define_work(Emitter(module, WORK, machine, ir.FunctionType(NOTHING, [POINTER, I64])))


def _define_work(e: Emitter) -> None:
    b, (job, thread) = e.b, e.function.args
    again, on, done = (e.function.append_basic_block(name) for name in ("again", "on", "done"))
    b.branch(again)
    b.position_at_end(again)
    b.call(e.module.get_global(_WAIT), [job])
    b.cbranch(b.icmp_unsigned("==", _read(e, job, Word.STOP), I64(0)), on, done)
    b.position_at_end(on)
    b.call(e.module.get_global(_RUN), [job, thread])
    b.branch(again)
    b.position_at_end(done)
    e.finish()


def _define_run(e: Emitter) -> None:
    b, (job, thread) = e.b, e.function.args
    launches, scratch = (b.inttoptr(_read(e, job, word), POINTER) for word in (Word.LAUNCHES, Word.SCRATCH))
    threads, size = _read(e, job, Word.THREADS), _read(e, job, Word.SCRATCH_SIZE)
    own = b.gep(scratch, [b.mul(thread, size)], source_etype=ir.IntType(8))
    with e.loop(I64(0), _read(e, job, Word.COUNT)) as launch:
        at = b.mul(launch, I64(2))
        kernel, arguments = (
            b.load(b.gep(launches, [b.add(at, I64(n))], source_etype=I64), typ=I64, align=8) for n in (0, 1)
        )
        function = b.inttoptr(kernel, ir.PointerType(KERNEL))  # a call reads its type
        b.call(function, [b.inttoptr(arguments, POINTER), thread, threads, own])
        b.call(e.module.get_global(_WAIT), [job])
    e.finish()


def _define_wait(e: Emitter) -> None:
    """The barrier. The last to arrive opens it; others read the generation, SPINS times, and then sleep."""
    b, (job,) = e.b, e.function.args
    generation = _read_now(e, job, Word.GENERATION)
    arrived = b.atomic_rmw("add", _place(e, job, Word.ARRIVED), I64(1), "acq_rel")
    is_last = b.icmp_unsigned("==", b.add(arrived, I64(1)), _read(e, job, Word.THREADS))
    with b.if_else(is_last) as (last, others):
        with last:
            b.atomic_rmw("xchg", _place(e, job, Word.ARRIVED), I64(0), "monotonic")
            b.atomic_rmw("xchg", _place(e, job, Word.GENERATION), b.add(generation, I64(1)), "seq_cst")
            with b.if_then(b.icmp_unsigned("!=", _read_now(e, job, Word.SLEEPERS), I64(0))):
                _library(e, job, "pthread_mutex_lock", Word.MUTEX)
                _library(e, job, "pthread_cond_broadcast", Word.CONDITION)
                _library(e, job, "pthread_mutex_unlock", Word.MUTEX)
        with others:
            _spin(e, job, generation)
    e.finish()


def _spin(e: Emitter, job: Value, generation: Value) -> None:
    b = e.b
    before = b.block
    read, pause, sleep, asleep, again, awake, done = (
        e.function.append_basic_block(name) for name in ("read", "pause", "sleep", "asleep", "again", "awake", "done")
    )
    most = _read(e, job, Word.SPINS)
    b.branch(read)
    b.position_at_end(read)
    spins = b.phi(I64)
    spins.add_incoming(I64(0), before)
    b.cbranch(_is_open(e, job, generation), done, pause)
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
    b.cbranch(_is_open(e, job, generation), awake, again)
    b.position_at_end(again)
    _library(e, job, "pthread_cond_wait", Word.CONDITION, Word.MUTEX)
    b.branch(asleep)
    b.position_at_end(awake)
    b.atomic_rmw("sub", _place(e, job, Word.SLEEPERS), I64(1), "seq_cst")
    _library(e, job, "pthread_mutex_unlock", Word.MUTEX)
    b.branch(done)
    b.position_at_end(done)


def _is_open(e: Emitter, job: Value, generation: Value) -> Value:
    return e.b.icmp_unsigned("!=", _read_now(e, job, Word.GENERATION), generation)


def _pause(e: Emitter) -> None:
    """A hint to the processor that this is a loop that waits."""
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
    """In the one order that all threads see."""
    return e.b.load_atomic(_place(e, job, word), "seq_cst", 8, typ=I64)
