"""A file that is replaced after its header was read: the offsets of the old header are those of other tensors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
from safetensors.numpy import load_file  # pyright: ignore[reportUnknownVariableType]

from bringup.adapters.sources.open_checkpoint import open_checkpoint
from bringup.compile.bundle.contents import write_weights
from bringup.compile.check.values import value_findings
from bringup.compile.convert.adapt import adapt
from bringup.compile.convert.convert import convert
from bringup.compile.convert.export import export
from bringup.compile.convert.export_quantised import export_quantised
from bringup.compile.job import Job, open_job
from bringup.diagnostics import BringupError
from bringup.graphs.core.options import GraphOptions
from tests.cli.headers import gpt2_config, gpt2_shapes, write_checkpoint
from tests.hostile.headers import framed

SMALL = {"layers": 1, "hidden": 64, "vocab": 96, "positions": 64}
READS: dict[str, Callable[[Job, Path], object]] = {
    "adapt": lambda job, out: adapt(job),
    "convert": lambda job, out: convert(job, out),
    "export": lambda job, out: export(job, out),
    "check --values": lambda job, out: value_findings(job),
    "the weights of a bundle": lambda job, out: write_weights(job, 16, out / "weights", lambda _: None, lambda _: None),
}


@pytest.fixture
def small(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "small", gpt2_shapes(**SMALL), gpt2_config(**SMALL))


def reorder(file: Path) -> None:
    """Writes the same tensors in the reverse order."""
    header: dict[str, object] = {"__metadata__": {"order": "the reverse"}}  # so that no file is shorter
    data = b""
    for name, array in reversed(load_file(file).items()):
        place = [len(data), len(data) + array.nbytes]
        header[name] = {"dtype": "F32", "shape": list(array.shape), "data_offsets": place}
        data += array.tobytes()
    file.write_bytes(framed(header, data))


@pytest.mark.parametrize("read", READS)
def test_replaced_by_another_order(small: Path, tmp_path: Path, read: str) -> None:
    job = open_job("gpt2", str(small))
    reorder(small / "model.safetensors")
    (tmp_path / "out").mkdir()
    with pytest.raises(BringupError) as caught:
        READS[read](job, tmp_path / "out" / "folder" if read in ("convert", "export") else tmp_path / "out")
    (finding,) = caught.value.findings
    assert finding.code == "BU207"
    assert "was written to or replaced after its header was read" in finding.message
    assert finding.file == str(small / "model.safetensors")
    assert not (tmp_path / "out" / "folder").exists()


def test_exported_quantised(small: Path, tmp_path: Path) -> None:
    job = open_job("gpt2", str(small), options=GraphOptions(quantize="fp8-block"))
    reorder(small / "model.safetensors")
    with pytest.raises(BringupError, match="BU207"):
        export_quantised(job, tmp_path / "out")


def test_removed(small: Path) -> None:
    job = open_job("gpt2", str(small))
    (small / "model.safetensors").rename(small / "model.old")
    with pytest.raises(BringupError, match="BU207"):
        convert(job, small.parent / "out")


def test_metadata_may_change(small: Path, tmp_path: Path) -> None:
    """A new link and other permissions leave the bytes as they are."""
    job = open_job("gpt2", str(small))
    file = small / "model.safetensors"
    file.chmod(0o444)
    (tmp_path / "link").hardlink_to(file)
    stored = load_file(file)
    arrays = adapt(job)
    assert all(np.array_equal(array, stored[name]) for name, array in arrays.items() if name in stored)


def test_the_state_is_that_before_the_header(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is replaced as soon as its header is read."""
    from bringup.adapters.sources import file_readers

    plain = file_readers.read_folder

    def replaced(path: Path) -> object:
        found = plain(path)
        reorder(path / "model.safetensors")
        return found

    monkeypatch.setattr(file_readers, "read_folder", replaced)
    job = open_job("gpt2", str(small))
    with pytest.raises(BringupError, match="BU207"):
        adapt(job)


def test_second_source(small: Path, tmp_path: Path) -> None:
    other = write_checkpoint(tmp_path / "other", {"x": (4,), "y": (4,)}, {})
    opened = open_checkpoint(str(small), also=[f"{other}:draft."])
    opened.refuse_changed()
    reorder(other / "model.safetensors")
    with pytest.raises(BringupError, match="BU207"):
        opened.refuse_changed()


def test_gguf(tmp_path: Path) -> None:
    def write(names: str) -> None:
        writer = gguf.GGUFWriter(tmp_path / "m.gguf", "of no family")
        for name in names:
            writer.add_tensor(name, np.zeros(4, np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()

    write("ab")
    opened = open_checkpoint(str(tmp_path / "m.gguf"))
    opened.refuse_changed()
    write("ba")
    with pytest.raises(BringupError, match="BU207"):
        opened.refuse_changed()
