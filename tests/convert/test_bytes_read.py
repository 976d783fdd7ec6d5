"""What a conversion reads of a file, counted where it reads: by the system calls, and against what `check` prints."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from bringup.adapters.apply import byte_runs
from bringup.adapters.sources.open_checkpoint import open_checkpoint
from bringup.compile.convert import shards
from tests.cli.conftest import Bringup
from tests.convert import by_hand, models
from tests.convert.by_hand import Arrays

SHARE = 1.05  # of a rank's own bytes, at most


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Every read of the weights, as they begin: its offset in the file, and how many bytes."""
    calls: list[tuple[int, int]] = []
    preadv = os.preadv

    def counting(descriptor: int, buffers: list[memoryview], offset: int) -> int:
        place = len(calls)
        calls.append((offset, 0))
        count = preadv(descriptor, buffers, offset)
        calls[place] = (offset, count)
        return count

    monkeypatch.setattr(os, "preadv", counting)
    monkeypatch.setattr(shards, "THREADS", 1)  # each thread reads the next tensor of the file: one shows the order
    return calls


def saved(folder: Path, tensors: Arrays, config: dict[str, object]) -> Path:
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    return folder


def large() -> tuple[Arrays, dict[str, object]]:
    """Slices of more than 64 KiB, so that each is worth a read of its own."""
    return models.llama(m=256, heads=8, kv=4, dim=64, ffn=1024, vocab=2048, bias=False)


def row_parallel(folder: Path, calls: list[tuple[int, int]]) -> list[int]:
    """What was read of each row-parallel matrix: one read of it, of at most all its bytes."""
    headers = open_checkpoint(folder).headers.values()
    found: list[int] = []
    for info in (info for info in headers if "o_proj" in info.name or "down_proj" in info.name):
        (size,) = [count for offset, count in calls if info.offset <= offset < info.offset + info.nbytes]
        assert size <= info.nbytes
        found.append(size)
    return found


def test_each_rank_reads_its_share(bringup: Bringup, tmp_path: Path, counted: list[tuple[int, int]]) -> None:
    """Column, qkv and vocabulary slices: what they hold. Row-parallel matrices: whole, once, in one stretch."""
    tensors, config = large()
    folder = saved(tmp_path / "llama", tensors, config)
    shares = json.loads(bringup("check", "--checkpoint", folder, "--tp", 4, "--format", "json").stdout)
    for rank in range(4):
        counted.clear()
        out = tmp_path / f"out{rank}"
        result = bringup("convert", "--checkpoint", folder, "--tp", 4, "--rank", rank, "-o", out)
        assert result.exit_code == 0, result.output
        read = sum(count for _, count in counted)
        assert read == shares["read_bytes_per_rank"][rank] == json.loads((out / "bringup.json").read_text())["read"]
        rows = sum(w.nbytes for name, w in tensors.items() if "o_proj" in name or "down_proj" in name)
        held = shares["bytes_per_rank"][rank] - rows // 4
        assert held <= read - sum(row_parallel(folder, counted)) <= SHARE * held
        offsets = [offset for offset, _ in counted]
        assert offsets == sorted(offsets)


def test_stages_and_experts(bringup: Bringup, tmp_path: Path, counted: list[tuple[int, int]]) -> None:
    tensors, config = models.mixtral(m=64, heads=4, kv=4, dim=16, ffn=256, vocab=512, experts=8)
    folder = saved(tmp_path / "mixtral", tensors, config)
    words = ["--ep", "4", "--pp", "2"]
    found = json.loads(bringup("check", "--checkpoint", folder, *words, "--format", "json").stdout)
    for rank in range(8):
        counted.clear()
        assert (
            bringup("convert", "--checkpoint", folder, *words, "--rank", rank, "-o", tmp_path / f"{rank}").exit_code
            == 0
        )
        read = sum(count for _, count in counted)
        assert found["bytes_per_rank"][rank] <= read <= SHARE * found["bytes_per_rank"][rank]
        assert read == found["read_bytes_per_rank"][rank]


def test_all_ranks_read_the_file_once(bringup: Bringup, tmp_path: Path, counted: list[tuple[int, int]]) -> None:
    tensors, config = large()
    folder = saved(tmp_path / "llama", tensors, config)
    assert bringup("convert", "--checkpoint", folder, "--tp", 4, "-o", tmp_path / "out").exit_code == 0
    assert sum(count for _, count in counted) == sum(w.nbytes for w in tensors.values())
    assert [offset for offset, _ in counted] == sorted(offset for offset, _ in counted)


def test_parts_of_a_fused_tensor_are_apart(bringup: Bringup, tmp_path: Path, counted: list[tuple[int, int]]) -> None:
    """Phi-3 stores q, k and v as rows of one matrix: a rank reads three stretches, and nothing between them."""
    from transformers import Phi3Config

    from tests.models.parity import save_checkpoint

    config = Phi3Config(
        hidden_size=256, intermediate_size=512, num_hidden_layers=1, num_attention_heads=8, num_key_value_heads=8,
        vocab_size=512, pad_token_id=0, max_position_embeddings=64, original_max_position_embeddings=64,
        tie_word_embeddings=False,
    )  # fmt: skip
    folder = save_checkpoint(config, tmp_path / "phi3")
    assert bringup("convert", "--checkpoint", folder, "--tp", 2, "--rank", 1, "-o", tmp_path / "out").exit_code == 0
    fused = 3 * 256 * 256 * 4
    sizes = [count for _, count in counted]
    assert sizes.count(256 * 256 * 4 // 2) >= 3
    whole = sum(np.prod(shape) for shape in ((256, 256), (256, 512), (256,), (256,), (256,))) * 4
    own = (512 * 256 + 512 * 256 + 1024 * 256) * 4 // 2 + fused // 2
    before = (128 + 256) * 4  # the first rows of o_proj and down_proj, up to this rank's part
    assert sum(sizes) == whole + own - before


def test_runs_are_exact(
    bringup: Bringup, tmp_path: Path, counted: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where every run is read by itself, however short: a rank's own bytes, each once, and nothing else is needed."""
    monkeypatch.setattr(byte_runs, "SHORT", 1)
    for name, (tensors, config) in {"llama": models.llama(bias=False), "mixtral": models.mixtral()}.items():
        folder = saved(tmp_path / name, tensors, config)
        for rank in range(2):
            counted.clear()
            out = tmp_path / f"{name}{rank}"
            assert bringup("convert", "--checkpoint", folder, "--tp", 2, "--rank", rank, "-o", out).exit_code == 0
            held = load_file(out / f"rank{rank}.safetensors")
            if name == "llama":
                wanted = by_hand.llama(tensors, rank, tp=2, pp=1, heads=2, layers=2)
            else:
                wanted = by_hand.mixtral(tensors, rank, tp=2, ep=1, heads=2, physical=[0, 1, 2, 3])
            assert all(np.array_equal(held[key], array) for key, array in wanted.items())
            assert sum(count for _, count in counted) == sum(array.nbytes for array in wanted.values())


def test_small_tensors_are_read_together(bringup: Bringup, tmp_path: Path, counted: list[tuple[int, int]]) -> None:
    """Neighbours in the file in one request, whichever parameters they become; large ones by themselves."""
    tensors, config = models.llama()  # 43 tensors of 64 bytes to 2 KiB
    folder = saved(tmp_path / "small", tensors, config)
    assert (
        bringup("convert", "--checkpoint", folder, "--to", "trtllm", "--tp", 2, "-o", tmp_path / "out").exit_code == 0
    )
    (read,) = counted
    assert read[1] == sum(w.nbytes for w in tensors.values())
    counted.clear()
    tensors, config = large()
    folder = saved(tmp_path / "large", tensors, config)
    assert bringup("convert", "--checkpoint", folder, "-o", tmp_path / "whole").exit_code == 0
    assert max(count for _, count in counted) == max(w.nbytes for w in tensors.values())
    assert sum(count for _, count in counted) == sum(w.nbytes for w in tensors.values())
