"""stderr while the Rust code of `tokenizers` runs in several threads."""

from __future__ import annotations

import os
from pathlib import Path

from bringup.compile.text.panics import panics_as
from bringup.diagnostics import fail


def test_stderr_is_back_once_the_last_thread_has_left(tmp_path: Path) -> None:
    """The first one to enter leaves first: what the second one found was no stderr."""
    first, second = (panics_as(lambda why: fail("BU613", why)) for _ in range(2))
    saved = os.dup(2)
    try:
        with (tmp_path / "stderr").open("wb") as file:
            os.dup2(file.fileno(), 2)
        first.__enter__()
        second.__enter__()
        os.write(2, b"both")
        first.__exit__(None, None, None)
        os.write(2, b"one")
        second.__exit__(None, None, None)
        os.write(2, b"none")
    finally:
        os.dup2(saved, 2)
        os.close(saved)
    assert (tmp_path / "stderr").read_bytes() == b"none"
