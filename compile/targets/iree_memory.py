"""Memory of arrays that IREE reads in place, until it releases it.

IREE 3.13 releases a buffer on whichever thread drops the last reference to it, its own workers among them, and without
Python's lock (`FileHandleWrapMemory` in iree/runtime/bindings/python/io.cc). An object freed there corrupts Python's
heap. So IREE gets a memoryview that is never freed, 200 bytes; Python frees the array behind it once it is released.
"""

from __future__ import annotations

import ctypes
import threading

import numpy as np

# A worker takes two references away without the lock. Each may undo one that Python adds or removes at the same moment.
_REFERENCES = 4
_lock = threading.Lock()
_lent: list[memoryview] = []


def lend(array: np.ndarray) -> memoryview:
    """The array's memory, [bytes] of uint8, for IREE. It stays until IREE has released it and `free_released` ran."""
    view = memoryview(array)
    for _ in range(_REFERENCES):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(view))
    with _lock:
        _lent.append(view)
    return view


def free_released() -> int:
    """Frees the memory that IREE has released; how many arrays it still reads."""
    with _lock:
        _lent[:] = [view for view in _lent if not _free(view)]
        return len(_lent)


def _free(view: memoryview) -> bool:
    try:
        view.release()
    except BufferError:  # IREE reads it
        return False
    return True
