"""The functions of HIP through ctypes: against its header, which the library in C is compiled with."""

from __future__ import annotations

import ctypes
import shutil
from typing import Any

import pytest

from bringup.compile.gpu.driver.driver import NON_BLOCKING, RELAXED
from bringup.compile.gpu.driver.errors import OUT_OF_MEMORY
from bringup.compile.gpu.driver.hip import SHARED_OF_BLOCK, release_of
from bringup.compile.gpu.driver.hip_library import SIGNATURES, HipLibrary, Out, Properties
from bringup.compile.gpu.driver.names import HIP
from bringup.compile.gpu.opening import NO_DEVICE
from tests.hip.emulated_runtime import ANSWER, answered_by

# A number of each type that has all its bytes; what is passed by address is a text.
LARGEST = {
    ctypes.c_void_p: 0x7F12_3456_789A,
    ctypes.c_size_t: 2**63 + 11,
    ctypes.c_ulonglong: 2**63 + 12,
    ctypes.c_uint: 2**32 - 13,
    ctypes.c_int: 2**31 - 14,
    ctypes.c_ubyte: 201,
}
WRITTEN = 2**40 + 2_000_000
TO_BUFFERS = ("hipDeviceGetName", "hipGetDevicePropertiesR0600")  # their first argument is written by the callee
Calls = list[tuple[str, list[int]]]


@pytest.fixture
def recorded(runtime, tmp_path) -> tuple[ctypes.CDLL, Calls]:
    """A library whose functions succeed and write `WRITTEN`, and what was called with which numbers."""
    library, calls = ctypes.CDLL(shutil.copy(runtime, tmp_path)), Calls()

    def answer(name: bytes, count: int, given: Any, written: Any) -> int:
        calls.append((name.decode(), [int(given[index]) for index in range(count)]))
        if name.decode() in TO_BUFFERS:
            ctypes.memmove(int(given[0]), b"gfx942:xnack-\0", 14)
        written[0] = WRITTEN
        return 0

    answered_by(library, ANSWER(answer))
    return library, calls


@pytest.mark.parametrize("name", SIGNATURES)
def test_every_argument_arrives_whole_and_every_result_comes_back(name, recorded) -> None:
    library, calls = recorded
    read = [kind for kind in SIGNATURES[name] if not isinstance(kind, Out)]
    results = [kind.kind for kind in SIGNATURES[name] if isinstance(kind, Out)]
    given = [b"some text" if kind is ctypes.c_char_p else LARGEST[kind] for kind in read]
    status, *values = getattr(HipLibrary(library), name)(*given)
    assert (status, calls[0][0]) == (0, name)
    numbers = calls[0][1][1:] if name in TO_BUFFERS else calls[0][1]
    for kind, number, passed in zip(read, numbers if read else [], given, strict=True):
        assert (ctypes.string_at(number) if kind is ctypes.c_char_p else number) == passed
    for kind, value in zip(results, values, strict=True):
        if kind is Properties:
            assert value.gcnArchName == b"gfx942:xnack-"
        elif name == "hipDeviceGetName":
            assert value == b"gfx942:xnack-"
        elif kind is ctypes.c_float:
            assert value == pytest.approx(WRITTEN / 1000)
        else:
            assert value == (WRITTEN if kind is ctypes.c_void_p else WRITTEN % 2**32)


def test_numbers_and_sizes_are_those_of_the_header(recorded) -> None:
    library = recorded[0]
    found = (ctypes.c_uint64 * 3).in_dll(library, "sizes")
    field: Any = Properties.gcnArchName
    assert list(found) == [ctypes.sizeof(Properties), field.offset, field.size]
    numbers = (ctypes.c_int * 5).in_dll(library, "numbers")
    assert list(numbers) == [SHARED_OF_BLOCK, NON_BLOCKING, RELAXED, OUT_OF_MEMORY, NO_DEVICE[1]]


def test_names_of_errors(recorded) -> None:
    api = HipLibrary(recorded[0])
    assert api.hipGetErrorName(OUT_OF_MEMORY) == (0, b"hipErrorOutOfMemory")
    assert api.hipGetErrorString(700) == (0, b"")


def test_every_function_of_a_driver_has_a_signature() -> None:
    texts = {HIP.error_name, HIP.error_text}
    assert {getattr(HIP, field) for field in HIP.__slots__} - texts <= set(SIGNATURES)
    with pytest.raises(AttributeError, match="hipNone"):
        _ = HipLibrary(ctypes.CDLL(None)).hipNone


def test_another_number_of_arguments(recorded) -> None:
    with pytest.raises(AssertionError, match="hipFree reads 1 arguments, not 2"):
        HipLibrary(recorded[0]).hipFree(1, 2)
    assert recorded[1] == []


def test_releases() -> None:
    assert release_of(70_125_424) == (7, 1)
    assert release_of(50_732_831) == (5, 7)
