"""Memory of arrays that IREE reads in place, until it releases it.

IREE 3.13 releases a buffer on whichever thread drops the last reference to it, its own workers among them, and without
Python's lock (`FileHandleWrapMemory` in iree/runtime/bindings/python/io.cc). An object freed there corrupts Python's
heap. So IREE gets a memoryview that is never freed, 184 bytes; Python frees the array behind it once it is released.
"""

from __future__ import annotations

import ctypes
from collections import deque

import numpy as np

# A worker removes two references without the lock. Each may undo one that Python adds or removes at the same moment.
_REFERENCES = 4
# Without a lock: the collector may close an executor, and so call this, during another call.
_exported: deque[memoryview] = deque()


def export_memory(array: np.ndarray) -> memoryview:
    """The array's memory, [bytes] of uint8, for IREE. It is kept until IREE has released it and `free_released` ran."""
    view = array.data
    for _ in range(_REFERENCES):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(view))
    _exported.append(view)
    return view


def free_released() -> None:
    """Frees the memory that IREE has released."""
    for _ in range(len(_exported)):
        try:
            view = _exported.popleft()
        except IndexError:  # another call took the rest
            return
        try:
            view.release()
        except BufferError:  # IREE reads it
            _exported.append(view)
