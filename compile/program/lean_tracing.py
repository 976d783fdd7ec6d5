# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
"""torch.export without work that no stage has a use for. Shares are of a trace, measured with torch 2.13."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from threading import RLock
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import fx

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
