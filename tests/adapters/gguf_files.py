"""GGUF files for tests: valid ones written by gguf-py, and hostile ones written byte by byte."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import gguf


def write(path: Path, fill: Callable[[gguf.GGUFWriter], None]) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    fill(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def hyperparameters(writer: gguf.GGUFWriter) -> None:
    writer.add_context_length(2048)
    writer.add_embedding_length(64)
    writer.add_block_count(2)
    writer.add_feed_forward_length(96)
    writer.add_head_count(4)
    writer.add_layer_norm_rms_eps(1e-5)


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def pair(key: str, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def tensor(name: str, shape: tuple[int, ...] = (2,), kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


def file_of(*infos: bytes, keys: tuple[bytes, ...] = (), data: bytes = b"\0" * 64, version: int = 3) -> bytes:
    head = b"GGUF" + struct.pack("<IQQ", version, len(infos), len(keys)) + b"".join(keys) + b"".join(infos)
    return head + b"\0" * (-len(head) % 32) + data
