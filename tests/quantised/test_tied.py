"""A head that is tied to an embedding in few bits: one copy of the codes, and the logits of the exact values."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from transformers import LlamaConfig

from bringup.adapters.checkpoints.safetensors import read_header
from bringup.compile.bundle.folder import WEIGHTS
from bringup.compile.convert.export import export_bundle
from bringup.compile.job import open_job
from bringup.compile.packed_job import pack_job
from bringup.compile.pipeline import build, check
from bringup.compile.runtime.session import load
from tests.models import family as shown
from tests.models import parity
from tests.quantised.checkpoints import WORDS
from tests.quantised.formats import INT4, compressed, packed


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A Llama with tied weights whose embedding is packed as its matrices are, and its exact values."""
    quantised, exact = (tmp_path_factory.mktemp(name) for name in ("packed", "exact"))
    words = WORDS | {"vocab_size": 136}
    parity.save_checkpoint(LlamaConfig(**words, intermediate_size=96, num_key_value_heads=2), exact)
    plain = load_file(exact / "model.safetensors")
    plain = {name: array for name, array in plain.items() if not name.startswith("lm_head")}
    config = json.loads((exact / "config.json").read_text("utf-8")) | {"tie_word_embeddings": True}
    stored: dict[str, np.ndarray] = {}
    for name, array in plain.items():
        if array.ndim == 2:
            parts, plain[name] = packed(array, 4, 32)
            stored |= {name.removesuffix("weight") + part: value for part, value in parts.items()}
        else:
            stored[name] = array
    said = compressed("pack-quantized", INT4, ignore=[])
    said["config_groups"]["group_0"]["targets"] = ["Linear", "Embedding"]
    for folder, tensors, more in ((quantised, stored, {"quantization_config": said}), (exact, plain, {})):
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})
        (folder / "config.json").write_text(json.dumps(config | more), "utf-8")
    return quantised, exact


def test_a_tied_embedding_stays_packed(folders: tuple[Path, Path], tmp_path: Path) -> None:
    quantised, exact = folders
    job = open_job(checkpoint=str(quantised))
    assert not check(job).findings
    parts = ("codes", "scales")
    assert pack_job(job).job.plan.aliases() == {
        f"lm_head.weight.{part}": f"model.embed_tokens.weight.{part}" for part in parts
    }
    tokens, wanted = shown.reference.__wrapped__(exact)
    bundle = build(job, out=tmp_path / "b", target="torch", weights_form="packed", max_seq_len=64, buckets=(16,))
    held = read_header(bundle / WEIGHTS)
    assert {f"model.embed_tokens.weight.{part}" for part in parts} <= held.keys()
    assert not [name for name in held if name.startswith("lm_head")]
    session = load(bundle)
    ours = session.prefill(tokens[: shown.PROMPT])
    assert abs(ours - wanted[shown.PROMPT - 1]).max() <= shown.WORST["torch"] * abs(wanted).max()
    export_bundle(bundle, tmp_path / "back", with_dropped=job.checkpoint)
    for file in ("model.safetensors", "config.json"):
        assert (tmp_path / "back" / file).read_bytes() == (quantised / file).read_bytes()
