"""Findings on the config of a GGUF file name the keys of its metadata."""

from __future__ import annotations

from pathlib import Path

import gguf
import pytest

from bringup.compile.check.checker import check_job
from bringup.compile.job import open_job
from tests.adapters import test_dialects


@pytest.mark.parametrize(
    ("name", "key", "value", "code"),
    [
        ("llama", "feed_forward_length", 77, "BU102"),
        ("llama", "attention.head_count_kv", 3, "BU102"),
        ("llama", "attention.head_count", 7, "BU102"),
        ("llama", "attention.layer_norm_rms_epsilon", -1.0, "BU121"),
        ("qwen3-moe", "expert_used_count", 99, "BU124"),
        ("qwen3-moe", "expert_feed_forward_length", 99, "BU102"),
    ],
)
def test_the_key_that_is_to_be_corrected(
    name: str, key: str, value: object, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    header = gguf.GGUFWriter.write_header_to_file

    def changed(writer: gguf.GGUFWriter) -> None:
        writer.kv_data[0][f"{writer.arch}.{key}"].value = value
        header(writer)

    monkeypatch.setattr(gguf.GGUFWriter, "write_header_to_file", changed)
    _, file = test_dialects.gguf_of(name, tmp_path)
    (finding,) = check_job(open_job(checkpoint=str(file))).findings
    assert finding.code == code
    assert f"`{name.replace('-', '')}.{key}`" in finding.message
    if code == "BU102":
        assert f"`{name.replace('-', '')}.{key}`" in finding.help
