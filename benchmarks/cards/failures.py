"""Errors that end one row of a run on a GPU, but not the run."""

from __future__ import annotations

from bringup.diagnostics import BringupError

# torch, transformers and Triton raise these for a card that is too small, for what they do not support, and for a
# compiler that fails; `torch.OutOfMemoryError` is a RuntimeError. Ours are BringupError.
FAILURES = (BringupError, RuntimeError, MemoryError, OSError, ValueError, NotImplementedError, ImportError)


def reason(error: BaseException) -> str:
    """One line for a cell of a table."""
    if isinstance(error, BringupError):
        return "; ".join(f"{each.code} {each.message}" for each in error.findings)[:200].replace("|", "/")
    first = (str(error).strip() or "no message").splitlines()[0]
    return f"{type(error).__name__}: {first[:160]}".replace("|", "/")
