"""A file that becomes shorter, or longer, after its header was read."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import pytest

from bringup.adapters.checkpoints import arrays
from bringup.adapters.checkpoints.arrays import loaded, mapped
from bringup.adapters.checkpoints.safetensors import TYPES
from bringup.adapters.sources.open_checkpoint import open_checkpoint
from bringup.compile.job import open_job
from bringup.compile.pipeline import build
from bringup.diagnostics import BringupError
from tests.cli.headers import gpt2_config, gpt2_shapes, write_checkpoint
from tests.hostile.headers import framed

SMALL = {"layers": 1, "hidden": 64, "vocab": 96, "positions": 64}


@pytest.fixture
def small(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "small", gpt2_shapes(**SMALL), gpt2_config(**SMALL))


def weights(folder: Path) -> Path:
    (file,) = folder.glob("*.safetensors")
    return file


def cut(file: Path, size: int) -> None:
    with file.open("r+b") as handle:
        handle.truncate(size)


@pytest.mark.parametrize("name", TYPES)
def test_loaded_is_mapped(tmp_path: Path, name: str) -> None:
    size = TYPES[name].bits  # bytes: of eight elements
    data = bytes(number % 2 for number in range(size + 1))  # 0 and 1 are valid bits of every dtype
    header = {
        "odd": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]},
        "x": {"dtype": name, "shape": [2, 4], "data_offsets": [1, size + 1]},
        "none": {"dtype": name, "shape": [0, 4], "data_offsets": [size + 1, size + 1]},
    }
    (tmp_path / "m.safetensors").write_bytes(framed(header, data))
    checkpoint = open_checkpoint(str(tmp_path))
    assert checkpoint.load is not None
    for info in checkpoint.headers.values():
        one, other = checkpoint.load(info), checkpoint.read(info)
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert one.tobytes() == other.tobytes()
        assert one.flags.aligned
        assert one.flags.writeable


def test_shorter_before_it_is_compiled(small: Path, tmp_path: Path) -> None:
    job = open_job("gpt2", str(small))
    cut(weights(small), weights(small).stat().st_size // 2)
    with pytest.raises(BringupError) as caught:
        build(job, out=tmp_path / "b", target="torch", buckets=(16,))
    assert {finding.code for finding in caught.value.findings} <= {"BU207", "BU208"}
    assert list(tmp_path.iterdir()) == [small]


def test_shorter_in_the_middle_of_a_tensor(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut once the file is open and its size was looked at: a mapping of it would end this process."""
    job, file = open_job("gpt2", str(small)), weights(small)
    plain = arrays.opened

    @contextmanager
    def cutting(path: Path) -> Generator[BinaryIO]:
        with plain(path) as handle:
            cut(file, file.stat().st_size // 2)
            yield handle

    monkeypatch.setattr(arrays, "opened", cutting)
    with pytest.raises(BringupError) as caught:
        build(job, out=tmp_path / "b", target="torch", buckets=(16,))
    assert [finding.code for finding in caught.value.findings] == ["BU207"]
    assert list(tmp_path.iterdir()) == [small]


def test_longer(small: Path) -> None:
    """What grows behind the last tensor changes none of them; opened anew, the file is refused."""
    checkpoint, file = open_checkpoint(str(small)), weights(small)
    info = next(iter(checkpoint.headers.values()))
    before = mapped(file, info).tobytes()
    with file.open("ab") as handle:
        handle.write(b"more")
    assert mapped(file, info).tobytes() == loaded(file, info).tobytes() == before
    with pytest.raises(BringupError, match="BU211"):
        open_checkpoint(str(small))


def test_replaced_by_something_else(small: Path) -> None:
    checkpoint, file = open_checkpoint(str(small)), weights(small)
    info = next(info for info in checkpoint.headers.values() if info.nbytes)
    file.unlink()
    file.mkdir()
    with pytest.raises(BringupError, match="BU233"):
        loaded(file, info)
