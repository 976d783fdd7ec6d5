"""The four ways to write an adapter, each as an example that is used as its first lines say."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from transformers import BloomConfig, LlamaConfig, Qwen2Config

from bringup import userfiles
from bringup.adapters.apply.materialise import materialise
from bringup.compile.check.checker import check_job
from bringup.compile.job import Job, open_job
from bringup.diagnostics import BringupError
from tests.models import family, parity, test_qwen

EXAMPLES = Path(__file__).parent.parent / "examples" / "authoring"
SIZES: dict[str, Any] = {"vocab_size": 131, "num_hidden_layers": 2, "max_position_embeddings": 256}
LLAMA = LlamaConfig(**SIZES, hidden_size=48, intermediate_size=64, num_attention_heads=6, num_key_value_heads=2)
QWEN = Qwen2Config(**SIZES, hidden_size=42, intermediate_size=33, num_attention_heads=7, num_key_value_heads=7)
BLOOM = BloomConfig(vocab_size=131, hidden_size=40, n_layer=2, n_head=5)


def assert_same(job: Job, folder: Path) -> None:
    """Nothing is found, and the logits are those of the transformers model in a folder."""
    assert [finding.message for finding in check_job(job).findings] == []
    tokens = parity.random_tokens(24, 131)
    wanted = family.stepwise(parity.load_reference(folder), tokens, 8)
    parity.assert_near(family.eager_logits(job, tokens, 8), wanted, "float32")


def renamed(folder: Path, name: Callable[[str], str], more: dict[str, Any] | None = None) -> Path:
    """The weights under other names, without a config."""
    other = folder.with_name("other")
    other.mkdir()
    tensors = {name(old): array for old, array in load_file(folder / "model.safetensors").items()}
    save_file(tensors | (more or {}), other / "model.safetensors")
    return other


def published_bloom(tmp_path: Path) -> tuple[Path, Path]:
    folder = parity.save_checkpoint(BLOOM, tmp_path / "saved")
    other = renamed(folder, lambda name: name.removeprefix("transformer."))
    (other / "config.json").write_text((folder / "config.json").read_text("utf-8"), "utf-8")
    return folder, other


def test_a_checkpoint_as_it_is(tmp_path: Path) -> None:
    folder = parity.save_checkpoint(LLAMA, tmp_path / "saved")
    assert_same(open_job(EXAMPLES / "as_it_is.py", folder), folder)
    assert_same(open_job(checkpoint=folder), folder)  # which the example is the long form of


def test_other_names(tmp_path: Path) -> None:
    folder = parity.save_checkpoint(LLAMA, tmp_path / "saved")
    images = {"vision_tower.a.weight": np.ones(3, np.float32), "multi_modal_projector.b": np.ones(3, np.float32)}
    other = renamed(folder, lambda name: f"language_model.{name}", images)
    job = open_job("llama", other, config=folder / "config.json", adapter=EXAMPLES / "other_names.py")
    assert sorted(job.plan.dropped) == sorted(images)
    assert_same(job, folder)


def test_the_layout_of_bloom(tmp_path: Path) -> None:
    folder, other = published_bloom(tmp_path)
    assert_same(open_job("bloom", other, adapter=EXAMPLES / "bloom_layout.py"), folder)


def test_the_layout_of_qwen_1(tmp_path: Path) -> None:
    folder = parity.save_checkpoint(QWEN, tmp_path / "saved")
    raw = json.loads((folder / "config.json").read_text("utf-8"))
    other = family.renamed(folder, tmp_path / "qwen", test_qwen.name, test_qwen.words(raw), test_qwen.FUSED)
    assert_same(open_job("qwen", other, adapter=EXAMPLES / "qwen1_layout.py"), folder)


def test_a_function_of_one_s_own(tmp_path: Path) -> None:
    """Its plan, from headers alone, is that of the table; and its arrays are those of the plan."""
    folder, other = published_bloom(tmp_path)
    job, table = open_job("bloom", other, adapter=EXAMPLES / "own_function.py"), open_job("bloom", other)
    assert job.plan.entries.keys() == table.plan.entries.keys()
    for name, entry in job.plan.entries.items():
        wanted = table.plan.entries[name]
        assert entry.sources == wanted.sources
        assert entry.stored().nests == wanted.stored().nests
        assert (entry.region.shape, entry.region.dtype) == (wanted.region.shape, wanted.region.dtype)
    assert_same(job, folder)
    tensors = load_file(other / "model.safetensors")
    arrays = userfiles.run(EXAMPLES / "own_function.py").convert(tensors, job.graph.config)
    planned = materialise(job.plan, job.checkpoint)
    assert arrays.keys() == planned.keys()
    assert all(np.array_equal(array, planned[name]) for name, array in arrays.items())


@pytest.mark.parametrize(
    ("old", "new", "code", "said"),
    [
        ('"ln_f.bias")', '"ln_g.bias")', "BU101", "reads `ln_g.bias`.*did you mean `ln_f.bias`"),
        ('arrays["lm_head.weight"]', 'arrays["head.weight"]', "BU004", "returns `head.weight`"),
    ],
)
def test_mistakes_of_a_function(tmp_path: Path, old: str, new: str, code: str, said: str) -> None:
    _, other = published_bloom(tmp_path)
    text = (EXAMPLES / "own_function.py").read_text("utf-8")
    assert old in text
    (tmp_path / "mine.py").write_text(text.replace(old, new), "utf-8")
    with pytest.raises(BringupError, match=f"(?s){code}") as caught:
        open_job("bloom", other, adapter=tmp_path / "mine.py")
    finding = caught.value.findings[0]
    assert re.search(said, f"{finding.message} {finding.help}")


def test_a_function_whose_array_has_another_shape_is_a_finding(tmp_path: Path) -> None:
    _, other = published_bloom(tmp_path)
    text = (EXAMPLES / "own_function.py").read_text("utf-8")
    text = text.replace('tensors["word_embeddings.weight"]', 'tensors["word_embeddings.weight"].T')
    (tmp_path / "mine.py").write_text(text, "utf-8")
    findings = check_job(open_job("bloom", other, adapter=tmp_path / "mine.py")).findings
    assert any("the function returns shape [40, 131], the parameter [131, 40]" in found.message for found in findings)


def test_dummy_weights_have_no_headers_to_trace() -> None:
    with pytest.raises(BringupError, match=r"BU118.*function of a checkpoint's headers"):
        open_job("bloom", "dummy", config=BLOOM.to_dict(), adapter=EXAMPLES / "own_function.py")
