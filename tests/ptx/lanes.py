"""Runs a piece of PTX on many values at once, one in each thread."""

from __future__ import annotations

import struct

import numpy as np

from bringup.compile import ptx

THREADS = 128


def text(body: str, registers: str = "", parameters: int = 0, threads: int = THREADS) -> str:
    """A module with a kernel of so many pointers."""
    listed = ", ".join(f".param .u64 p{place}" for place in range(parameters))
    return (
        f".version 8.8\n.target sm_90a\n.address_size 64\n.extern .shared .align 16 .b8 dynamic[];\n"
        f".visible .entry kernel({listed})\n.reqntid {threads}\n{{\n{registers}\n{body}\n}}\n"
    )


def apply(body: str, result: str, *inputs: np.ndarray, extra: str = "") -> np.ndarray:
    """What the body leaves in %d, for each element of the inputs, which are in %x0, %x1, …"""
    count = max(len(each) for each in inputs)
    padded = -(-count // THREADS) * THREADS
    kind = np.dtype(result)
    registers = [f".reg .b{8 * max(2, kind.itemsize)} %d;", ".reg .b64 %at<9>;", ".reg .b32 %n<4>;", extra]
    lines = ["mov.u32 %n0, %tid.x;", "mov.u32 %n1, %ctaid.x;", f"mad.lo.s32 %n2, %n1, {THREADS}, %n0;"]
    device, pointers = ptx.Device(1 << 22), []
    for place, values in enumerate(inputs):
        size = values.dtype.itemsize
        registers.append(f".reg .b{8 * max(2, size)} %x{place};")
        lines += [*_address(place, size), f"ld.global.b{8 * size} %x{place}, [%at0];"]
        pointers.append(device.put(np.resize(values, padded), f"x{place}"))
    pointers.append(out := device.alloc(padded * kind.itemsize, "out"))
    lines += [body, *_address(len(inputs), kind.itemsize), f"st.global.b{8 * kind.itemsize} [%at0], %d;", "ret;"]
    program = ptx.Program(text("\n".join(lines), "\n".join(registers), len(pointers)))
    program.launch(device, (padded // THREADS,), [struct.pack("<Q", each) for each in pointers])
    return device.read(out, kind, (padded,))[:count]


def _address(parameter: int, size: int) -> list[str]:
    return [f"ld.param.b64 %at1, [p{parameter}];", f"mad.wide.s32 %at0, %n2, {size}, %at1;"]


def same(got: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Equal, with the sign of zeros; any NaN equals any."""
    got, expected = np.asarray(got), np.asarray(expected, got.dtype)
    if got.dtype.kind != "f":
        return got == expected
    both = np.isnan(got) & np.isnan(expected)
    return both | ((got == expected) & (np.signbit(got) == np.signbit(expected)))
