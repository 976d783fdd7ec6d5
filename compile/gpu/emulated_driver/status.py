"""Status codes of the emulated driver: each function returns one, as those of the driver do."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from importlib import import_module
from typing import Any, Concatenate, ParamSpec

from bringup.compile.ptx import Fault

P = ParamSpec("P")

INVALID_VALUE, OUT_OF_MEMORY, INVALID_IMAGE, INVALID_CONTEXT, NO_BINARY, INVALID_PTX = 1, 2, 200, 201, 209, 218
INVALID_HANDLE, NOT_FOUND, NOT_READY, ILLEGAL_ADDRESS = 400, 500, 600, 700
MISALIGNED, FAILED, CAPTURE, CAPTURE_INVALID = 716, 719, 900, 901

_WITHOUT_CONTEXT = ("cuInit", "cuDriver", "cuDevice", "cuCtx")  # prefixes of functions that need no context


class Refused(Exception):
    """A call that the driver would reject, with the status that it would return and a message."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class Statuses:
    """State shared by all functions of the emulated driver: the result types, and the error that ended the context."""

    def __init__(self) -> None:
        self._types = import_module("cuda.bindings.driver")
        self._lost: int = 0
        self.current = threading.local()  # its `context` is the current context of the thread
        self.message = ""  # of the last call that failed

    def __getattr__(self, name: str) -> Any:
        """Types and enumerations of cuda.bindings. Raises AttributeError for a function that is not emulated."""
        if name.startswith("CU") and "_types" in self.__dict__:
            return getattr(self._types, name)
        raise AttributeError(f"the emulated CUDA driver has no `{name}`")

    def ended(self, function: Callable[[], Any], name: str) -> tuple[Any, ...]:
        """Runs the function of this name. Returns its status, and its value if it has one."""
        try:
            if not name.startswith(_WITHOUT_CONTEXT) and not getattr(self.current, "context", None):
                raise Refused(INVALID_CONTEXT, f"{name} in a thread that has no context")
            if self._lost:
                raise Refused(self._lost, f"the context has ended: {self.message}")
            value = function()
        except Refused as refused:
            self.message = self.message if self._lost else str(refused)
            return self._types.CUresult(refused.status), None
        except Fault as fault:
            self._lost, self.message = status_of(fault), str(fault)
            return self._types.CUresult(self._lost), None
        except MemoryError as error:
            self.message = str(error)
            return self._types.CUresult(OUT_OF_MEMORY), None
        success = self._types.CUresult.CUDA_SUCCESS
        return (success,) if value is None else (success, value)

    def cuGetErrorName(self, status: Any) -> tuple[Any, bytes]:
        return self._types.CUresult.CUDA_SUCCESS, str(self._types.CUresult(int(status)).name).encode()

    def cuGetErrorString(self, status: Any) -> tuple[Any, bytes]:
        """The message of the last failure, which has more detail than the driver's text."""
        return self._types.CUresult.CUDA_SUCCESS, self.message.encode()


def call(function: Callable[Concatenate[Any, P], Any]) -> Callable[Concatenate[Any, P], tuple[Any, ...]]:
    """Wraps a method as a function of the driver: it returns its status, and its value if it has one."""

    @functools.wraps(function)
    def run(self: Statuses, *arguments: P.args, **named: P.kwargs) -> tuple[Any, ...]:
        return self.ended(lambda: function(self, *arguments, **named), function.__name__)

    return run


def status_of(fault: Fault) -> int:
    """The status of a fault: an illegal address, a misaligned address, or any other failure of a kernel."""
    text = str(fault)
    if "misaligned" in text:
        return MISALIGNED
    wrong = ("out of bounds", "no allocation", "freed", "address", "beyond")
    return ILLEGAL_ADDRESS if any(word in text for word in wrong) else FAILED
