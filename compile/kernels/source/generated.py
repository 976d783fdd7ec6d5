"""Device functions from code that selectors generate: the computations of a kernel besides its own loop."""

import linecache
from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from typing import Any

import triton
import triton.language as tl

from bringup.compile.kernels.source import arithmetic
from bringup.compile.kernels.source.largest import keep_largest


@cache
def function_of(text: str) -> Any:
    """The Triton function that a text defines, `def …`. Equal texts return the same function.

    Its globals are `tl`, the functions of `arithmetic`, and `keep_largest`. Triton reads the source of a function from
    its file, so the text is stored in Python's cache of lines, under a file name with its digest.
    """
    file = f"<kernel {sha256(text.encode()).hexdigest()[:16]}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    names = {**_globals(), "__name__": __name__}
    exec(compile(text, file, "exec"), names)
    (name,) = (name for name in names if name not in _globals() and not name.startswith("__"))
    return triton.jit(names[name])


@cache
def _globals() -> Mapping[str, Any]:
    functions = {name: value for name, value in vars(arithmetic).items() if isinstance(value, triton.JITFunction)}
    return {"tl": tl, "keep_largest": keep_largest, **functions}
