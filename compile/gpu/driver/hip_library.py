"""HipLibrary: the functions of HIP's runtime library (libamdhip64.so), called through ctypes.

Signatures, enumerations and the structure are those of hip_runtime_api.h; tests compile against that header. The
package hip-python is not used, because each of its releases supports one release of ROCm only.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, Mapping
from ctypes import CDLL, POINTER, Structure, byref
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NAME = "libamdhip64.so"
RELEASES = ("", ".7", ".6")  # suffixes of the library's name: versions of its binary interface
STANDARD = "/opt/rocm"  # the folder of ROCm unless ROCM_PATH names another


class Properties(Structure):
    """hipDeviceProp_tR0600, 1,472 bytes since ROCm 6.0. Only the name of the architecture is read."""

    _fields_ = [("before", ctypes.c_ubyte * 1160), ("gcnArchName", ctypes.c_char * 256), ("after", ctypes.c_ubyte * 56)]
    gcnArchName: bytes


@dataclass(frozen=True, slots=True)
class Out:
    """An output parameter: a pointer to a value of type `kind`, which the function writes."""

    kind: Any


_HANDLE, _ADDRESS = ctypes.c_void_p, ctypes.c_void_p
_INT, _UNSIGNED, _SIZE, _TEXT = ctypes.c_int, ctypes.c_uint, ctypes.c_size_t, ctypes.c_char_p
SIGNATURES: Mapping[str, tuple[Any, ...]] = {
    "hipInit": (_UNSIGNED,),
    "hipRuntimeGetVersion": (Out(_INT),),
    "hipGetDeviceCount": (Out(_INT),),
    "hipGetDevice": (Out(_INT),),
    "hipSetDevice": (_INT,),
    "hipDeviceGetName": (Out(ctypes.c_char * 256), _INT, _INT),
    "hipDeviceGetAttribute": (Out(_INT), _INT, _INT),
    "hipGetDevicePropertiesR0600": (Out(Properties), _INT),
    "hipMalloc": (Out(_ADDRESS), _SIZE),
    "hipFree": (_ADDRESS,),
    "hipHostMalloc": (Out(_ADDRESS), _SIZE, _UNSIGNED),
    "hipHostFree": (_ADDRESS,),
    "hipHostGetDevicePointer": (Out(_ADDRESS), _ADDRESS, _UNSIGNED),
    "hipMemcpyHtoDAsync": (_ADDRESS, _ADDRESS, _SIZE, _HANDLE),
    "hipMemcpyDtoHAsync": (_ADDRESS, _ADDRESS, _SIZE, _HANDLE),
    "hipMemsetD8Async": (_ADDRESS, ctypes.c_ubyte, _SIZE, _HANDLE),
    "hipModuleLoadData": (Out(_HANDLE), _TEXT),
    "hipModuleUnload": (_HANDLE,),
    "hipModuleGetFunction": (Out(_HANDLE), _HANDLE, _TEXT),
    "hipModuleLaunchKernel": (_HANDLE, *(_UNSIGNED,) * 7, _HANDLE, _ADDRESS, _ADDRESS),
    "hipStreamCreateWithFlags": (Out(_HANDLE), _UNSIGNED),
    "hipStreamDestroy": (_HANDLE,),
    "hipStreamSynchronize": (_HANDLE,),
    "hipEventCreateWithFlags": (Out(_HANDLE), _UNSIGNED),
    "hipEventDestroy": (_HANDLE,),
    "hipEventRecord": (_HANDLE, _HANDLE),
    "hipEventSynchronize": (_HANDLE,),
    "hipEventElapsedTime": (Out(ctypes.c_float), _HANDLE, _HANDLE),
    "hipStreamBeginCapture": (_HANDLE, _INT),
    "hipStreamEndCapture": (_HANDLE, Out(_HANDLE)),
    "hipGraphInstantiateWithFlags": (Out(_HANDLE), _HANDLE, ctypes.c_ulonglong),
    "hipGraphExecDestroy": (_HANDLE,),
    "hipGraphDestroy": (_HANDLE,),
    "hipGraphLaunch": (_HANDLE, _HANDLE),
}
TEXTS = ("hipGetErrorName", "hipGetErrorString")  # return a text and no status


class HipLibrary:
    """The functions of HIP as attributes. Each accepts the inputs of the C function, and returns status and outputs."""

    def __init__(self, library: CDLL) -> None:
        self._library = library

    def __getattr__(self, name: str) -> Any:
        """The function of this name. Raises AttributeError if this release of HIP does not have it."""
        if name in TEXTS:
            found = _text(self._library, name)
        elif name in SIGNATURES:
            found = _function(self._library, name)
        else:
            raise AttributeError(f"`{name}` is not a HIP function with a declared signature")
        setattr(self, name, found)
        return found


def found_library() -> CDLL | None:
    """The runtime library from ROCM_PATH, the loader's search path or /opt/rocm, in this order. None if not found."""
    for place in _places():
        try:
            return CDLL(place)
        except OSError:
            continue
    return None


def _places() -> Iterator[str]:
    folders = [os.environ.get("ROCM_PATH"), None, STANDARD]
    for folder in folders if folders[0] else folders[1:]:
        yield from (str(Path(folder, "lib", NAME + each)) if folder else NAME + each for each in RELEASES)


def _function(library: CDLL, name: str) -> Any:
    function, signature = getattr(library, name), SIGNATURES[name]
    function.argtypes = [POINTER(each.kind) if isinstance(each, Out) else each for each in signature]
    function.restype = _INT

    count = sum(not isinstance(each, Out) for each in signature)

    def call(*arguments: Any) -> tuple[Any, ...]:
        assert len(arguments) == count, f"{name} reads {count} arguments, not {len(arguments)}"
        given, written, passed = iter(arguments), list[Any](), list[Any]()
        for each in signature:
            if isinstance(each, Out):
                written.append(each.kind())
                passed.append(byref(written[-1]))
            else:
                passed.append(next(given))
        status: int = function(*passed)
        return status, *(value if isinstance(value, Structure) else value.value for value in written)

    return call


def _text(library: CDLL, name: str) -> Any:
    function = getattr(library, name)
    function.argtypes, function.restype = [_INT], _TEXT

    def call(status: int) -> tuple[int, bytes]:
        return 0, function(status)

    return call
