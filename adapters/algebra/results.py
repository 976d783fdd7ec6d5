"""Checks the results of users' functions: an array of the shape and dtype that their rule declares, or BU116."""

from __future__ import annotations

import inspect
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from bringup.diagnostics import BringupError, fail
from bringup.spec import Shape, Site

if TYPE_CHECKING:
    import numpy as np


def checked(name: str, found: object, shape: Shape, dtype: str, where: Site | None = None) -> np.ndarray:
    """The result of the function `name`. Raises BU116 unless it is an array of that shape and dtype."""
    import numpy as np

    from bringup.adapters.checkpoints.arrays import numpy_dtype

    if isinstance(found, np.ndarray):
        array = cast("np.ndarray", found)
        if array.shape == shape and array.dtype == numpy_dtype(dtype):
            return array
    raise refused(name, _shown(found), f"{dtype} {list(shape)}", where)


def refused(name: str, gave: str, declared: str, where: Site | None) -> BringupError:
    """BU116: the result of a function is not what its rule declares."""
    help = "correct the axes or dtype that the rule declares, or the function"
    return fail("BU116", f"`{name}` returned {gave}; its rule declares {declared}", help=help, where=where)


def _shown(found: Any) -> str:
    if hasattr(found, "dtype") and hasattr(found, "shape"):
        return f"{found.dtype} {list(found.shape)}"
    return "None" if found is None else f"a {type(found).__name__}"


def site_of(function: Any) -> Site | None:
    """The source line of a function; None if Python has none."""
    inner: Any = function.func if isinstance(function, partial) else function
    code = getattr(inspect.unwrap(inner), "__code__", None)
    return Site(code.co_filename, code.co_firstlineno) if code else None
