"""Handwritten PTX for 128 threads: runs a body and reads the values that it stored."""

from __future__ import annotations

import struct

import numpy as np

from bringup.compile import ptx

_HEAD = """.version 8.0
.target sm_80
.address_size 64
.extern .shared .align 16 .b8 smem[];
.visible .entry k(.param .u64 p0) .reqntid 128
{
.reg .pred %p<9>; .reg .b16 %h<9>; .reg .b32 %r<30>; .reg .b64 %rd<9>;
ld.param.b64 %rd1, [p0];
mov.u32 %r1, %tid.x;
mov.u32 %r2, %ctaid.x;
mov.b32 %r4, smem;
"""
# stores %r9 of every thread
STORE = """
mad.lo.s32 %r20, %r2, 128, %r1;
mad.wide.s32 %rd2, %r20, 4, %rd1;
st.global.b32 [%rd2], %r9;
ret;"""


def program(body: str) -> ptx.Program:
    """A kernel with one pointer; %r1 is the thread, %r2 the block, %r4 the shared memory, %rd1 the pointer."""
    return ptx.Program(f"{_HEAD}{body}\n}}\n")


def run(
    body: str, *, blocks: int = 1, shared: int = 8192, initial: np.ndarray | None = None, **how: object
) -> tuple[np.ndarray, ptx.Run]:
    """What the buffer `out`, a word for each thread, holds after the launch."""
    device = ptx.Device(1 << 20)
    content = np.zeros(128 * blocks, np.int32) if initial is None else initial
    out = device.put(content, "out")
    done = program(body).launch(device, (blocks,), [struct.pack("<Q", out)], shared=shared, **how)
    return device.read(out, content.dtype, content.shape), done
