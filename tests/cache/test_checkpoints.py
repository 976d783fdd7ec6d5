"""Weights are those of the checkpoint as it is, whatever its files' sizes and times say."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import bringup
from bringup.adapters.checkpoints.checkpoint import Checkpoint
from bringup.compile.bundle.bundle_key import CacheKeys
from bringup.compile.cache import file_identity, text_digests
from bringup.compile.cache.file_identity import Unsettled, identities
from bringup.compile.cache.store import Store
from bringup.compile.job import Job, open_job
from bringup.compile.program.export_options import layout_of
from bringup.compile.targets.selection import select

CONFIG = {"architectures": ["GPT2LMHeadModel"], "vocab_size": 64, "n_positions": 32, "n_embd": 32, "n_layer": 1}
CONFIG |= {"n_head": 2, "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new", "n_ctx": 32}


def write(path: Path, factor: float = 1.0) -> Path:
    """A checkpoint; another factor changes its values, not its size."""
    job = open_job("gpt2", "dummy", config=CONFIG)
    read = job.checkpoint.read
    save_file({name: read(info) * np.float32(factor) for name, info in job.checkpoint.headers.items()}, path)
    return path


def rewrite(path: Path, factor: float) -> None:
    """Other values in the same file, with its size and both times put back as far as a program can."""
    before = path.stat()
    other = write(path.with_name("other"), factor)
    with path.open("r+b") as file:
        file.write(other.read_bytes())
    other.unlink()
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = path.stat()
    assert (after.st_size, after.st_mtime_ns, after.st_ino) == (before.st_size, before.st_mtime_ns, before.st_ino)


@pytest.fixture(autouse=True)
def trusted(monkeypatch):
    monkeypatch.setattr(text_digests, "STARTED", float("inf"))  # a colleague may edit a file while tests run


@pytest.fixture
def path(tmp_path) -> Path:
    return write(tmp_path / "model.safetensors")


@pytest.fixture(params=["read", "told by the file system"])
def large(request, monkeypatch) -> bool:
    """Whether files count as too large to be read for a key."""
    if request.param != "read":
        monkeypatch.setattr(file_identity, "QUICK", 0)
        monkeypatch.setattr(file_identity, "SETTLED", 0.0)
    return request.param != "read"


def opened(path: Path) -> Job:
    return open_job("gpt2", str(path), config=CONFIG)


def compiled(path: Path, name: str, **options: bool) -> np.ndarray:
    """A matrix of a bundle that is compiled with the cache beside it."""
    store = Store(path.parent / "cache")
    bundle = bringup.build(opened(path), out=path.parent / name, target="torch", buckets=[2], cache=store, **options)
    return load_file(bundle / "weights.safetensors")["transformer.h.0.attn.c_attn.weight"]


@pytest.mark.parametrize("force", [False, True])
def test_a_rewritten_checkpoint_gives_its_new_weights(path, large, force):
    first = compiled(path, "a.bundle")
    rewrite(path, 2.0)
    np.testing.assert_array_equal(compiled(path, "b.bundle", force=force), first * 2)
    np.testing.assert_array_equal(compiled(path, "a.bundle", force=True), first * 2)


def test_forced_weights_are_read_before_they_are_linked(path, monkeypatch):
    """Even where the file that a bundle has looks as it did when it was written."""
    from bringup.compile.bundle import place_weights

    first = compiled(path, "a.bundle")
    monkeypatch.setattr(place_weights, "_state", lambda file: [file.stat().st_size, 0, 0, 0, 0])
    monkeypatch.setattr(place_weights.Placed, "keep", lambda *_: None)
    np.testing.assert_array_equal(compiled(path, "b.bundle"), first)
    place = path.parent / "b.bundle" / "weights.safetensors"
    whole = place.read_bytes()
    place.write_bytes(whole[:-4] + b"\0\0\x80\x3f")
    np.testing.assert_array_equal(compiled(path, "c.bundle", force=True), first)
    assert (path.parent / "c.bundle" / "weights.safetensors").read_bytes() == whole


def test_a_link_to_weights_does_not_part_them_from_the_cache(path, monkeypatch):
    """It changes the file's time of change, not its bytes: they are compared once, and shared again."""
    compiled(path, "a.bundle")
    inode = (path.parent / "a.bundle" / "weights.safetensors").stat().st_ino
    for name in ("b.bundle", "c.bundle"):
        compiled(path, name)
        assert (path.parent / name / "weights.safetensors").stat().st_ino == inode
    (path.parent / "a.bundle" / "weights.safetensors").unlink()
    compiled(path, "d.bundle")
    assert (path.parent / "d.bundle" / "weights.safetensors").stat().st_ino == inode


def test_a_large_file_that_was_just_written_is_not_trusted(path, monkeypatch):
    monkeypatch.setattr(file_identity, "QUICK", 0)
    with pytest.raises(Unsettled):
        identities([path])
    assert CacheKeys.of(opened(path), layout_of(opened(path).graph, 32), select("torch")).key == ""
    monkeypatch.setattr(file_identity, "SETTLED", 0.0)
    assert identities([path])


def test_a_checkpoint_that_changes_while_it_is_compiled_leaves_no_key(path, monkeypatch):
    from bringup.compile import pipeline

    plain = pipeline.write_tokenizer

    def late(*given):
        rewrite(path, 3.0)
        plain(*given)

    monkeypatch.setattr(pipeline, "write_tokenizer", late)
    first = compiled(path, "a.bundle")
    monkeypatch.undo()
    monkeypatch.setattr(text_digests, "STARTED", float("inf"))
    np.testing.assert_array_equal(compiled(path, "b.bundle"), first * 3)
    assert (
        not (path.parent / "cache" / "weights").exists()
        or len(list((path.parent / "cache" / "weights").iterdir())) == 1
    )


def test_a_reader_whose_bytes_nothing_tells_has_no_key(path):
    """Of another package: its tensors are in no file, or its function holds values that its text does not show."""
    job = opened(path)
    layout = layout_of(job.graph, 32)
    assert CacheKeys.of(job, layout, select("torch")).key
    plain = job.checkpoint

    def held(info):
        return plain.read(info)

    nowhere = {name: info._replace(file=None) for name, info in plain.headers.items()}
    changes: list[dict[str, object]] = [{"headers": nowhere}, {"read": held}, {"load": held}]
    for change in changes:
        checkpoint: Checkpoint = replace(plain, **change)
        assert CacheKeys.of(replace(job, checkpoint=checkpoint), layout, select("torch")).key == "", change


def test_files_of_one_name_in_two_folders_do_not_stand_for_one_another(tmp_path, large):
    """`A/model.safetensors --also B/model.safetensors:…` and the two swapped are other weights."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    one, other = write(tmp_path / "a" / "model.safetensors"), write(tmp_path / "b" / "model.safetensors", 2.0)
    job = opened(one)
    layout = layout_of(job.graph, 32)

    def weights(first: Path, second: Path) -> object:
        files = {name: first if "mlp" in name else second for name in job.checkpoint.headers}
        headers = {name: info._replace(file=files[name]) for name, info in job.checkpoint.headers.items()}
        checkpoint = replace(job.checkpoint, headers=headers)
        return CacheKeys.of(replace(job, checkpoint=checkpoint), layout, select("torch")).weights

    assert weights(one, other) is not None
    assert weights(one, other) == weights(one, other)
    assert weights(one, other) != weights(other, one)
