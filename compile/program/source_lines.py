"""Whether torch looks up the lines of Python that the nodes of a graph come from, which takes a fifth of a trace."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def source_lines(recorded: bool) -> Generator[None]:
    """In the block, nodes have their lines or not."""
    from torch.fx import config

    before = config.do_not_emit_stack_traces
    config.do_not_emit_stack_traces = not recorded
    try:
        yield
    finally:
        config.do_not_emit_stack_traces = before
