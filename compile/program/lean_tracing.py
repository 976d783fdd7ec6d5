# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false
"""Omits work of torch that tracing does not need. Fractions are of the time of a trace, measured with torch 2.13."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from functools import cache
from threading import RLock
from types import CellType, FunctionType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import fx

LINES = "do_not_emit_stack_traces"  # of torch.fx.config; torch 2.11 does not have it, and always records lines
LEFT_ALONE = "__dynamo_disable"  # an attribute of functions that torch's compiler does not trace
_REPLACING = RLock()  # a replacement in torch affects all threads


@contextmanager
def uncached() -> Generator[None]:
    """In the block, new modes of fake tensors do not cache results of operations; saves a quarter.

    The cache is useful for programs that repeat operations. A stage repeats few, and computing the key of an operation
    and storing its result takes as long as the operation.
    """
    from torch._dynamo import config

    with config.patch(fake_tensor_cache_enabled=False):
        yield


@contextmanager
def compiled_when_called() -> Generator[None]:
    """In the block, graphs are compiled to Python code when first called, not after each pass; saves an eighth."""
    from torch import fx

    with _REPLACING:
        real = fx.GraphModule.recompile

        def called(self: Any, *args: Any, **kwargs: Any) -> Any:
            real(self)
            return self(*args, **kwargs)

        def later(self: fx.GraphModule) -> Any:
            type(self).forward = called

        fx.GraphModule.recompile = later
        try:
            yield
        finally:
            fx.GraphModule.recompile = real


@contextmanager
def source_lines(recorded: bool) -> Generator[None]:
    """In the block, nodes of graphs have the Python lines that created them if `recorded`; without, saves a fifth."""
    from torch.fx import config

    if not hasattr(config, LINES):
        yield
        return
    before = getattr(config, LINES)
    setattr(config, LINES, not recorded)
    try:
        yield
    finally:
        setattr(config, LINES, before)


@contextmanager
def lean_metas() -> Generator[None]:
    """In the block, shapes on the meta device are computed without the import of torch's compiler, which takes 1.5 s.

    The functions that compute shapes import it to exclude themselves from it. So nothing in the block may be compiled
    by torch. Functions that torch wraps in another way are unchanged.
    """
    from torch._decomp import global_decomposition_table

    with _REPLACING:
        known = _asking(sum(map(len, global_decomposition_table.values())))
        functions = {function for function in known if not hasattr(function, LEFT_ALONE)}
        for function in functions:
            setattr(function, LEFT_ALONE, function)
        try:
            yield
        finally:
            for function in functions:
                delattr(function, LEFT_ALONE)


@cache
def _asking(entries: int) -> tuple[Callable[..., Any], ...]:
    """`asking()` for tables with this number of entries. The search takes as long as the trace of a small stage."""
    return tuple(asking())


def asking() -> Iterator[Callable[..., Any]]:
    """The functions with which torch computes shapes, and those that they wrap, that exclude themselves from its
    compiler.

    A wrapped function is in the closure of its wrapper; the excluding wrapper names it `fn`.
    """
    from torch._compile import _disable_dynamo
    from torch._decomp import global_decomposition_table

    asks = _disable_dynamo(lambda: None).__code__
    waiting = [function for table in global_decomposition_table.values() for function in table.values()]
    seen: set[FunctionType] = set()
    while waiting:
        function: Any = waiting.pop()
        if not isinstance(function, FunctionType) or function in seen:
            continue
        seen.add(function)
        inside = [cell.cell_contents for cell in function.__closure__ or () if cell != CellType()]
        if function.__code__ is asks:
            yield inside[asks.co_freevars.index("fn")]
        waiting += inside
