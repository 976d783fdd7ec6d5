# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false
"""Removes work of torch that tracing does not need. Shares are of the time of a trace, measured with torch 2.13."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from threading import RLock
from types import CellType, FunctionType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import fx

LINES = "do_not_emit_stack_traces"  # of torch.fx.config; torch 2.11 has none, and always looks them up
LEFT_ALONE = "__dynamo_disable"  # an attribute of a function that torch's compiler does not follow
_REPLACING = RLock()  # what is replaced in torch is there for all threads


@contextmanager
def uncached() -> Generator[None]:
    """Modes of fake tensors made in the block keep no results of operations; torch.export makes its own.

    The cache pays for programs that repeat operations. A stage has few that are alike, and to spell an operation for
    the cache and to keep its result takes as long as to compute it: a quarter.
    """
    from torch._dynamo import config

    with config.patch(fake_tensor_cache_enabled=False):
        yield


@contextmanager
def compiled_when_called() -> Generator[None]:
    """A graph changed in the block becomes Python code when it is called first, not after each pass: an eighth."""
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
    """In the block, the nodes of a graph have the lines of Python that they come from, or not: a fifth."""
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
    """In the block, shapes on the meta device are computed without an import of torch's compiler, which takes 1.5 s.

    The functions that compute them import it to be left alone by it. Nothing in the block may be compiled by torch. Of
    a function that torch wraps in another way nothing changes.
    """
    with _REPLACING:
        functions = {function for function in asking() if not hasattr(function, LEFT_ALONE)}
        for function in functions:
            setattr(function, LEFT_ALONE, function)
        try:
            yield
        finally:
            for function in functions:
                delattr(function, LEFT_ALONE)


def asking() -> Iterator[Callable[..., Any]]:
    """Every function that asks to be left alone, of those with which torch computes shapes, and those inside them.

    What a wrapper calls is in its closure; the one that asks calls it `fn`.
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
