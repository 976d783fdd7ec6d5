"""numpy's archives and files, written by numpy."""

from __future__ import annotations

import json
import zipfile
import zlib
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from bringup.adapters.checkpoints.numpy_files.npy_header import Header, located
from bringup.adapters.checkpoints.stored import Stored, read_stored
from bringup.adapters.sources.open_checkpoint import open_checkpoint
from bringup.diagnostics import BringupError
from bringup.spec import TensorInfo

NUMBERS = np.arange(24).reshape(2, 3, 4)
KINDS = ["f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "?", ">f4", ">i8", ">f2"]


def arrays() -> dict[str, np.ndarray]:
    found = {kind.replace("?", "bool"): NUMBERS.astype(kind) for kind in KINDS}
    found |= {"fortran": np.asfortranarray(NUMBERS.astype("f4")), "scalar": np.float32(3.5).reshape(())}
    found |= {"empty": np.zeros((0, 3), "f4"), "deep.name/with.slash": NUMBERS.astype("f4")}
    return found | {
        "bfloat16": NUMBERS.astype(ml_dtypes.bfloat16),
        "fortran big": np.asfortranarray(NUMBERS.astype(">i4")),
    }


def assert_equal(source: Path, expected: dict[str, np.ndarray]) -> None:
    opened = open_checkpoint(source)
    assert opened.format == "numpy"
    assert set(opened.headers) == set(expected)
    for name, array in expected.items():
        info = opened.headers[name]
        assert (info.dtype, info.shape) == (array.dtype.newbyteorder("=").name, array.shape)
        for read in (opened.read, opened.load):
            assert read is not None
            found = read(info)
            assert np.array_equal(found, array)
            assert found.flags.writeable
            assert found.dtype.isnative


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_archives(tmp_path: Path, save) -> None:
    save(tmp_path / "model.npz", **arrays())
    assert_equal(tmp_path / "model.npz", arrays())
    assert_equal(tmp_path, arrays())


def test_a_stream_that_begins_with_empty_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer that is flushed before there is data writes such blocks, which take 5 bytes each (RFC 1951, 3.2.4)."""

    class Flushed:
        def __init__(self) -> None:
            self.plain, self.start = zlib.compressobj(9, zlib.DEFLATED, -15), 2_000 * b"\x00\x00\x00\xff\xff"

        def compress(self, data: bytes) -> bytes:
            start, self.start = self.start, b""
            return start + self.plain.compress(data)

        def flush(self) -> bytes:
            return self.plain.flush()

    weights = {"w": np.arange(4000, dtype=np.float32), "b": np.ones(3, np.float32)}
    with monkeypatch.context() as patch:
        patch.setattr(zipfile, "_get_compressor", lambda *_: Flushed())
        np.savez_compressed(tmp_path / "model.npz", **weights)
    assert np.array_equal(np.load(tmp_path / "model.npz")["w"], weights["w"]), "numpy reads it"
    opened = open_checkpoint(tmp_path / "model.npz")
    for name, array in weights.items():
        assert np.array_equal(opened.read(opened.headers[name]), array)


def test_a_large_compressed_array(tmp_path: Path) -> None:
    """More than one piece of the stream, and the header is not the end of one."""
    rng = np.random.default_rng(0)
    expected = {"a": rng.integers(0, 9, 3_000_001, np.uint8), "b": rng.standard_normal((700, 501)).astype("f4").T}
    np.savez_compressed(tmp_path / "model.npz", **expected)
    assert_equal(tmp_path / "model.npz", expected)


def test_folders_and_files(tmp_path: Path) -> None:
    expected = {name.replace("/", "."): array for name, array in arrays().items()}
    for name, array in expected.items():
        np.save(tmp_path / f"{name}.npy", array)
    assert_equal(tmp_path, expected)
    assert_equal(tmp_path / "fortran.npy", {"fortran": expected["fortran"]})


def np_cache(folder: Path, expected: dict[str, np.ndarray]) -> Path:
    """What `np_cache_weights_iterator` of vLLM and SGLang writes: files without a suffix, and the list of them."""
    (folder / "np").mkdir()
    for name, array in expected.items():
        with (folder / "np" / name).open("wb") as file:
            np.save(file, array)
    (folder / "np" / "weight_names.json").write_text(json.dumps([*expected]), "utf-8")
    return folder / "np"


def test_npcache(tmp_path: Path) -> None:
    """By the model's folder, by its own, and by its list; config.json is that of the model's folder."""
    expected = {name.replace("/", "."): array for name, array in arrays().items()}
    cache = np_cache(tmp_path, expected | {"ends.npy": NUMBERS.astype("f4")})
    (tmp_path / "config.json").write_text('{"model_type": "llama"}', "utf-8")
    for source in (tmp_path, cache, cache / "weight_names.json"):
        assert_equal(source, expected | {"ends.npy": NUMBERS.astype("f4")})
        assert open_checkpoint(source).config == {"model_type": "llama"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "it is not a list"),
        ("[", "Expecting"),
        ("[1]", "1 is not the name of a file"),
        ('["../config.json"]', "is not the name of a file"),
        ('[".."]', "is not the name of a file"),
        ('["absent"]', "there is no file `absent`"),
        (f'["{"a" * 300}"]', "there is no file `aaa"),  # longer than file systems permit
        ('["weight"], "x": [1]', "Extra data: line 1 column 11"),
    ],
)
def test_an_npcache_with_a_bad_list(tmp_path: Path, text: str, message: str) -> None:
    cache = np_cache(tmp_path, {"weight": NUMBERS})
    (cache / "weight_names.json").write_text(text, "utf-8")
    with pytest.raises(BringupError) as caught:
        open_checkpoint(tmp_path)
    (finding,) = caught.value.findings
    assert finding.code == "BU210"
    assert message in finding.message


@pytest.mark.parametrize(
    ("array", "said"),
    [
        (np.array([None, {}], object), "objects, which are a pickle"),
        (np.array(["a", "b"]), "dtype '<U1'"),
        (np.ones(2, "c8"), "dtype '<c8'"),
        (np.ones(2, "M8[s]"), "dtype '<M8[s]'"),
        (np.ones(2, [("x", "f4"), ("y", "f4")]), "several fields"),
        (np.ones(2, ml_dtypes.float8_e5m2), "dtype '<f1'"),
    ],
    ids=range(6),
)
def test_arrays_that_are_refused(tmp_path: Path, array: np.ndarray, said: str) -> None:
    np.savez(tmp_path / "model.npz", weight=array)
    with pytest.raises(BringupError) as caught:
        open_checkpoint(tmp_path / "model.npz")
    (finding,) = caught.value.findings
    assert (finding.code, finding.sources) == ("BU210", ("weight",))
    assert said in finding.message


def test_two_archives_in_a_folder(tmp_path: Path) -> None:
    for name in "ab":
        np.savez(tmp_path / f"{name}.npz", weight=NUMBERS)
    with pytest.raises(BringupError, match="BU218"):
        open_checkpoint(tmp_path)


def test_an_empty_array_that_no_memory_addresses(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((0, 3), "f4"))
    data = (tmp_path / "a.npy").read_bytes()
    wide = data.replace(b"(0, 3), }" + b" " * 20, b"(0, 2305843009213693952), }" + b" " * 2)
    assert wide != data
    assert len(wide) == len(data)
    (tmp_path / "a.npy").write_bytes(wide)
    with pytest.raises(BringupError, match="BU210"):
        open_checkpoint(tmp_path / "a.npy")


def test_a_stream_that_claims_more_than_deflate_can_hold() -> None:
    header = Header("float32", (1 << 44,), (1,), False, 128)
    with pytest.raises(BringupError, match="deflate stream of 1,000"):
        located(Path("a.npz"), "a", header, 0, 128 + (1 << 46), packed=1000)
    header = header._replace(shape=(1 << 18,))  # zeros: np.savez_compressed makes 1,031 bytes one
    assert located(Path("a.npz"), "a", header, 0, 128 + (1 << 20), packed=1020)[0].nbytes == 1 << 20


def test_the_stride_of_an_axis_of_one_does_not_matter(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(np.arange(6, dtype="<f4").tobytes())
    info = TensorInfo("a", "float32", (1, 2, 3), tmp_path / "a", 0, 24, plain=False)
    found = read_stored(info, Stored((1 << 61, 1, 2), 24))
    assert np.array_equal(found[0], np.arange(6, dtype="f4").reshape(3, 2).T)
