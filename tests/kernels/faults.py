"""Faults to plant in kernels that bundles have, and what names each."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from bringup.compile.kernels.call import KernelCall, Pointer
from tests.kernels.attention import Case
from tests.kernels.tasks.attention import attended
from tests.kernels.tasks.drawing import head
from tests.kernels.tasks.products import product
from tests.kernels.tasks.task import Task

CAPABILITY = "sm_80"
DECODE = Case(lengths=(300, 70), blocks=5, heads=4, groups=2, has_sinks=True)
TASKS: dict[str, Callable[[], Task]] = {
    "linear": lambda: product(1, 1100, 4, "float32", "rms"),
    "attention_decode": lambda: attended(DECODE),
    "drawn": lambda: head(2, 38, "float32"),
}


@dataclass(frozen=True)
class Fault:
    """`named`: what one of the findings matches. `text`: the file, what stands in it, and what is put there instead.

    `number`: that of the call whose kernel has the fault.
    """

    stem: str
    named: str
    text: tuple[str, str, str] | None = None
    ptx: Callable[[str], str] | None = None
    call: Callable[[KernelCall], KernelCall] | None = None
    capability: str = CAPABILITY
    number: int = 0


def without_a_release(text: str) -> str:
    """The counter is added to without an order."""
    return text.replace("atom.global.gpu.acq_rel", "atom.global.gpu.relaxed")


def without_a_barrier(text: str) -> str:
    """The second one: that between the parts of a sum that warps store, and those that they read."""
    parts = re.split(r"(bar\.sync[^\n]*\n)", text)
    return "".join([*parts[:3], *parts[4:]])


def without_zeros(text: str) -> str:
    """The registers of the loads of weights are not set where the mask is false."""
    return re.sub(
        r"mov\.u32 %r\d+, %r\d+;\n(?=(?:\s*mov\.u32[^\n]*\n)*\s*@%p\d+ ld\.global[^\n]*evict_first)", "", text
    )


def with_a_late_wait(text: str) -> str:
    """The wait for the launch before is the last that each warp does."""
    wait = "griddepcontrol.wait ;"
    assert wait in text
    head, end, tail = text.replace(wait, "").rpartition("ret;")
    return f"{head}{wait}\n{end}{tail}"


def exchanged(*names: str) -> Callable[[KernelCall], KernelCall]:
    """Two arguments of a call, by their buffers."""

    def change(call: KernelCall) -> KernelCall:
        one, other = (call.arguments.index(Pointer(name)) for name in names)
        arguments = list(call.arguments)
        arguments[one], arguments[other] = arguments[other], arguments[one]
        return replace(call, arguments=tuple(arguments))

    return change


def swapped_strides(call: KernelCall) -> KernelCall:
    constants = dict(call.kernel.constants)
    constants["K_ROW"], constants["K_HEAD"] = constants["K_HEAD"], constants["K_ROW"]
    return replace(call, kernel=replace(call.kernel, constants=tuple(constants.items())))


DEPARTS = (
    r"`out` departs from the reference by .* of 128 elements, in \[.*\]; stored by block \(.*\) at attention_decode"
)
UNWRITTEN = r"read of global memory never written: attention_parts\.py:\d+: .* at k \+ \d+ \(of \d+ bytes\)"
FAULTS = {
    "missing mask": Fault(
        "linear",
        r"out of bounds load of \d+ bytes at weight \+ \d+ \(of 17600 bytes\)(.|\n)* at linear\.py:\d+: .*ld\.global",
        text=("linear.py", "mask=live[:, None] & (at < K)", "mask=live[:, None] & (at < K + 999)"),
    ),
    "missing barrier": Fault("linear", r"read after write: .*: ld\.shared.* shared memory \+ ", ptx=without_a_barrier),
    "missing release": Fault(
        "attention_decode",
        r"another block's store read without its release: attention_decode\.py:\d+: .*ld\.global.* at scratch \+ \d+",
        ptx=without_a_release,
    ),
    "swapped strides": Fault("attention_decode", UNWRITTEN, call=swapped_strides),
    "wrong argument order": Fault("attention_decode", DEPARTS, call=exchanged("k", "v")),
    "an input for the result": Fault(
        "attention_decode",
        r"store to `q`, which the launch only reads: attention_decode\.py:\d+: .*st\.global",
        call=exchanged("q", "out"),
    ),
    "off-by-one split": Fault(
        "attention_decode",
        DEPARTS,
        text=("attention_decode.py", "tl.minimum(low + each * KEYS, end)", "tl.minimum(low + each * KEYS + 1, end)"),
    ),
    "off-by-one length": Fault(
        "attention_decode",
        UNWRITTEN,
        text=("attention_decode.py", "tl.minimum(position + 1, LENGTH)", "tl.minimum(position + 2, LENGTH)"),
    ),
    "missing `other`": Fault("linear", r"`out` departs from the reference by inf at .* in \[0, ", ptx=without_zeros),
    "wrong page": Fault(
        "attention_decode",
        UNWRITTEN,
        text=("attention_parts.py", "TABLE + key // BLOCK, mask", "TABLE + key // BLOCK + 1, mask"),
    ),
    "another sequence's page": Fault(
        "attention_decode",
        r"`out` departs .*in \[1, 0:4, 0:16\]; stored by block \(\d, \d, 1\)",
        text=("attention_parts.py", "block_table + sequence * TABLE + key", "block_table + key"),
    ),
    "double-counted sink": Fault(
        "attention_decode",
        DEPARTS,
        text=(
            "attention_decode.py",
            "        part = of_heads * SPLITS + split\n",
            "        part = of_heads * SPLITS + split\n        total += tl.exp2(sinks * 1.4426950408889634 - top)\n",
        ),
    ),
    "a largest logit past the vocabulary": Fault(
        "drawn",
        r"`drawn` departs from the reference by 1\.0e\+00 at \[0\]; 2 of 2 elements",
        text=("largest.py", "tl.where(live, (order", "tl.where(tl.max(live.to(tl.int32), 1)[:, None] > 0, (order"),
    ),
    "the last of equal logits": Fault(
        "drawn",
        r"`drawn` departs from the reference by 1\.0e\+00 at \[0\]; 2 of 2 elements",
        text=(
            "largest.py",
            "(2147483647 - token)",
            "(2147483647 - tl.max(tl.where(live & (order == tl.max(order * live, 1)[:, None]), token, 0), 1)[:, None])",
        ),
    ),
    "slots that are not cleared": Fault(
        "drawn",
        r"it leaves a nonzero counter: scratch \+ \d+",
        text=("draw.py", "    tl.store(slots, tl.zeros((SLOTS,), tl.int64))\n", ""),
        number=1,
    ),
    "slots that are read before the wait": Fault(
        "drawn",
        r"access before the wait for the launch before: draw\.py:\d+: .* at scratch \+ 0 \(of \d+ bytes\)",
        ptx=with_a_late_wait,
        capability="sm_90",
        number=1,
    ),
    "a fetch before the wait": Fault(
        "linear",
        r"access before the wait for the launch before: linear\.py:\d+: .* at x \+ 0 \(of \d+ bytes\)",
        ptx=with_a_late_wait,
        capability="sm_90",
    ),
    "stale scratch: a counter": Fault(
        "attention_decode",
        r"it leaves a nonzero counter: scratch \+ 0",
        text=("attention_decode.py", "            tl.store(counter, 0)\n", ""),
    ),
    "stale scratch: a part": Fault(
        "attention_decode",
        r"read of global memory never written: attention_decode\.py:\d+: .* at scratch \+ \d+",
        text=("attention_decode.py", "        tl.store(total_BHS + part, total, mask=is_head)\n", ""),
    ),
}  # fmt: skip
