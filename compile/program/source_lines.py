"""Whether torch looks up the lines of Python that the nodes of a graph come from, which takes a fifth of a trace."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

SETTING = "do_not_emit_stack_traces"  # of torch.fx.config; torch 2.11 has none, and always looks them up


@contextmanager
def source_lines(recorded: bool) -> Generator[None]:
    """In the block, nodes have their lines or not."""
    from torch.fx import config

    if not hasattr(config, SETTING):
        yield
        return
    before = getattr(config, SETTING)
    setattr(config, SETTING, not recorded)
    try:
        yield
    finally:
        setattr(config, SETTING, before)
