"""Sizes of experts that the metadata of a GGUF file lacks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gguf
import pytest

from bringup.adapters.sources.open_checkpoint import open_checkpoint
from tests.adapters import gguf_families, llama_cpp, test_dialects
from tests.adapters.written import raises

SIZES = ("expert_count", "expert_feed_forward_length", "expert_shared_feed_forward_length")
Written = Callable[..., tuple[Path, Path]]


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Written:
    """Writes a case, and the same file without some keys of its architecture."""
    header = gguf.GGUFWriter.write_header_to_file

    def write(name: str, *keys: str) -> tuple[Path, Path]:
        def fewer(writer: gguf.GGUFWriter) -> None:
            for key in keys:
                writer.kv_data[0].pop(f"{writer.arch}.{key}", None)
            header(writer)

        monkeypatch.setattr(gguf.GGUFWriter, "write_header_to_file", fewer)
        place = tmp_path / f"{name} {len(keys)}"
        place.mkdir()
        if name in gguf_families.CASES:
            return gguf_families.write(gguf_families.CASES[name], place)
        return test_dialects.gguf_of(name, place)

    return write


@pytest.mark.parametrize("name", ["qwen2-moe", "qwen3-moe", "gpt-oss", "glm4-moe", "deepseek-v2"])
def test_sizes_that_tensors_have(name: str, without: Written) -> None:
    """As in files of Qwen1.5-MoE that were converted before llama.cpp had keys for the widths."""
    whole = open_checkpoint(str(without(name)[1])).config
    folder, file = without(name, *SIZES)
    assert open_checkpoint(str(file)).config == whole
    llama_cpp.assert_same_logits(folder, file)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("qwen2-moe", "qwen2moe.expert_used_count"),
        ("qwen3-moe", "qwen3moe.expert_used_count"),
        ("mixtral", "llama.expert_used_count"),
        ("gpt-oss", "gpt-oss.expert_used_count"),
        ("glm4-moe", "glm4moe.expert_shared_count"),
    ],
)
def test_a_number_that_no_tensor_has_is_an_error(name: str, key: str, without: Written) -> None:
    """The default of the family's config.json would be another number."""
    with raises("BU224", f"`{key}`"):
        open_checkpoint(str(without(name, key.partition(".")[2])[1]))
