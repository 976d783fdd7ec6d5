"""The journal of a conversion: torn lines, odd ones, and what is at its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from bringup.compile.convert.staging import Staging
from tests.convert.killed import kill, opening, shards_written
from tests.convert.test_resume_inputs import journal_of, same_bytes, save


def test_a_torn_line_is_cut_off(tmp_path: Path) -> None:
    """So that the lines of the next run are its own, and a third run takes them over too."""
    out, job = tmp_path / "arrays", opening(save(tmp_path / "llama"))
    kill(job, out, "after the journal", 3)
    with journal_of(out).open("a") as file:
        file.write('{"shard": "k3", "sh')
    kill(job, out, "after the journal", 5)
    total = shards_written(job, tmp_path / "whole")
    assert shards_written(job, out) == total - 5
    assert same_bytes(out, tmp_path / "whole")


ODD = [
    b"3\n",
    b"[]\n",
    b'"x"\n',
    b'{"shard": ["a"], "sha256": 1}\n',
    b'{"shard": "a"}\n',
    b"\xff\n",
    b"[" * 9999 + b"\n",
]


@pytest.mark.parametrize("odd", [*ODD, b""], ids=lambda odd: repr(odd[:20]))
def test_odd_lines(odd: bytes, tmp_path: Path) -> None:
    """Lines before them hold, those after them do not."""
    folder = tmp_path / ".arrays.resume"
    staging = Staging.opened(folder, "inputs")
    staging.add("a", "1")
    line = b'{"shard": "b", "sha256": "2"}\n'
    with (folder / "journal").open("ab") as file:
        file.write(odd + line if odd else line)
    again = Staging.opened(folder, "inputs")
    assert again.written == ({"a": "1"} if odd else {"a": "1", "b": "2"})
    again.add("c", "3")
    assert Staging.opened(folder, "inputs").written == again.written
    (folder / "journal").write_bytes(odd)
    assert Staging.opened(folder, "inputs").written == {}


def test_a_link_at_the_place_of_the_staging(tmp_path: Path) -> None:
    """The link goes, what it leads to stays."""
    other, folder = tmp_path / "other", tmp_path / ".arrays.resume"
    other.mkdir()
    (other / "file").write_text("text")
    folder.symlink_to(other)
    Staging.opened(folder, "inputs")
    assert (other / "file").read_text() == "text"
    assert not folder.is_symlink()
