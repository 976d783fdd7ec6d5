"""TensorRT-LLM's checkpoints: every rank's tensors, by the names and shapes of the published format."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from bringup.adapters.sources.open_checkpoint import open_checkpoint
from bringup.diagnostics import BringupError

VOCAB, HIDDEN, FFN, HEADS, KV, LAYERS = 12, 8, 16, 4, 2, 2
HEAD = HIDDEN // HEADS
# The names, with the axis that tensor parallelism divides: docs/source/architecture/checkpoint.md and
# tensorrt_llm/models/llama/convert.py.
LLAMA = {
    "transformer.vocab_embedding.weight": ((VOCAB, HIDDEN), None),
    "transformer.ln_f.weight": ((HIDDEN,), None),
    "lm_head.weight": ((VOCAB, HIDDEN), 0),
    "transformer.layers.{L}.input_layernorm.weight": ((HIDDEN,), None),
    "transformer.layers.{L}.post_layernorm.weight": ((HIDDEN,), None),
    "transformer.layers.{L}.attention.qkv.weight": (((HEADS + 2 * KV) * HEAD, HIDDEN), 0),
    "transformer.layers.{L}.attention.dense.weight": ((HIDDEN, HIDDEN), 1),
    "transformer.layers.{L}.mlp.fc.weight": ((FFN, HIDDEN), 0),
    "transformer.layers.{L}.mlp.gate.weight": ((FFN, HIDDEN), 0),
    "transformer.layers.{L}.mlp.proj.weight": ((HIDDEN, FFN), 1),
}


def written(folder: Path, **mapping: int) -> dict[str, np.ndarray]:
    """Two tensor-parallel ranks, and the tensors that they are divided from."""
    rng = np.random.default_rng(0)
    shapes = {name.replace("{L}", str(n)): entry for name, entry in LLAMA.items() for n in range(LAYERS)}
    whole = {name: rng.standard_normal(shape).astype("f4") for name, (shape, _) in shapes.items()}
    for rank in range(2):
        parts: dict[str, np.ndarray] = {}
        for name, (_, axis) in shapes.items():
            part = whole[name] if axis is None else np.split(whole[name], 2, axis)[rank]
            if name.endswith("qkv.weight"):  # each rank has its share of q, of k and of v
                rows = np.split(whole[name], [HEADS * HEAD, (HEADS + KV) * HEAD])
                part = np.concatenate([np.split(each, 2)[rank] for each in rows])
            parts[name] = np.ascontiguousarray(part)
        save_file(parts, folder / f"rank{rank}.safetensors")
    words = {"architecture": "LlamaForCausalLM", "mapping": mapping or {"world_size": 2, "tp_size": 2, "pp_size": 1}}
    (folder / "config.json").write_text(json.dumps(words))
    return whole


def test_every_rank_and_the_whole(tmp_path: Path) -> None:
    """Put together by hand, the ranks' arrays are the original's."""
    whole = written(tmp_path)
    opened = open_checkpoint(tmp_path)
    assert opened.format == "trtllm"
    assert opened.config == {"architectures": ["LlamaForCausalLM"]}
    assert opened.ranks is not None
    assert opened.ranks.format == "trtllm"
    assert opened.ranks.keys["mapping"]["tp_size"] == 2
    assert set(opened.headers) == {f"rank{rank}.{name}" for rank in range(2) for name in whole}
    axes = {name.replace("{L}", str(n)): axis for name, (_, axis) in LLAMA.items() for n in range(LAYERS)}
    for name, expected in whole.items():
        pair = [opened.read(opened.headers[f"rank{rank}.{name}"]) for rank in range(2)]
        if name.endswith("qkv.weight"):
            rows = [np.split(part, [HEADS * HEAD // 2, (HEADS + KV) * HEAD // 2]) for part in pair]
            found = np.concatenate([each for both in zip(*rows, strict=True) for each in both])
        elif axes[name] is None:
            assert np.array_equal(pair[0], pair[1])
            found = pair[0]
        else:
            found = np.concatenate(pair, axes[name])
        assert np.array_equal(found, expected), name


@pytest.mark.parametrize(
    ("mapping", "said"),
    [
        ({"world_size": 4, "tp_size": 2, "pp_size": 2}, "it lacks `rank2.safetensors`, `rank3.safetensors`"),
        ({"tp_size": 1}, "it also has `rank1.safetensors`"),
        ({"world_size": 3, "tp_size": 2}, "tp_size times pp_size is 2"),
        ({"tp_size": 0}, "are not numbers of ranks"),
        ({"tp_size": 1 << 40}, "are not numbers of ranks"),
    ],
)
def test_what_does_not_fit_the_mapping(tmp_path: Path, mapping: dict[str, int], said: str) -> None:
    written(tmp_path, **mapping)
    with pytest.raises(BringupError) as caught:
        open_checkpoint(tmp_path)
    (finding,) = caught.value.findings
    assert (finding.code, said in finding.message) == ("BU229", True), finding.message


def test_without_a_mapping_they_are_plain_files(tmp_path: Path) -> None:
    written(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(BringupError, match="BU217"):
        open_checkpoint(tmp_path)
