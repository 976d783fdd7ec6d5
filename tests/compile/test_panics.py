"""stderr while the Rust code of `tokenizers` runs in several threads."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from bringup.compile.text.panics import panics_as
from bringup.diagnostics import fail


def test_stderr_is_back_once_the_last_thread_has_left(tmp_path: Path) -> None:
    """Each thread is in the block while others enter and leave it."""
    start = threading.Barrier(4)

    def work() -> None:
        start.wait()
        for _ in range(300):
            with panics_as(lambda why: fail("BU613", why)):
                os.write(2, b"inside")

    saved = os.dup(2)
    try:
        with (tmp_path / "stderr").open("wb") as file:
            os.dup2(file.fileno(), 2)
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        os.write(2, b"after")
    finally:
        os.dup2(saved, 2)
        os.close(saved)
    assert (tmp_path / "stderr").read_bytes() == b"after"
