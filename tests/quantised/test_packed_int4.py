"""A Llama in 4 bits with zeros, by an adapter of the user's: a quarter of bfloat16's bytes, the same logits."""

from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from bringup.compile.estimate.sizes import dry_run
from bringup.compile.job import Job, open_job
from bringup.compile.packed_job import pack_job
from bringup.compile.pipeline import check
from tests.models import family, parity

HIDDEN, FFN, LAYERS, HEADS, VOCAB, GROUP = 256, 512, 4, 4, 64, 32
ADAPTER = """
from bringup.adapters import S, llama
from bringup.adapters.algebra.quantised import QuantisedMatrix
from bringup.graphs.core.form import Form

FORM = Form(codes="uint4", block=(1, 32), scale="float16", zero="uint4")
MATRICES = "self_attn.q_proj|self_attn.k_proj|self_attn.v_proj|self_attn.o_proj|mlp.gate_proj|mlp.up_proj|mlp.down_proj"


def words(name):
    return S(name, "out w", dtype="int32").bits("uint4", "v").mv("out w v -> out (w v)")


def adapter(config):
    found = llama.adapter(config)
    found.rules = [rule for rule in found.rules if "_proj" not in rule.pattern]
    parts = {
        "codes": words("layers.{L}.{m}.qweight"),
        "scales": S("layers.{L}.{m}.scales", "out groups"),
        "zeros": words("layers.{L}.{m}.qzeros"),
    }
    matrix = QuantisedMatrix("int4", FORM, parts).mv("out in -> out in")
    found["model.layers.{L}.{m:%s}.weight" % MATRICES] = matrix
    return found
"""


def in_words(codes: np.ndarray) -> np.ndarray:
    """Eight codes [rows, n] to a word int32 [rows, n / 8], the first in the low bits."""
    apart = codes.astype(np.uint32).reshape(codes.shape[0], -1, 8) << (4 * np.arange(8, dtype=np.uint32))
    return apart.sum(-1).astype(np.uint32).view(np.int32)


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The checkpoint in 4 bits, and one of the values that it stands for."""
    random, stored, plain = np.random.default_rng(0), dict[str, np.ndarray](), dict[str, np.ndarray]()

    def quantised(module: str, rows: int, columns: int) -> None:
        codes = random.integers(0, 16, (rows, columns))
        zeros = random.integers(6, 10, (rows, columns // GROUP))
        scales = (random.uniform(0.5, 1.5, zeros.shape) / np.sqrt(columns) / 5).astype(np.float16)
        packed = {"qweight": in_words(codes), "scales": scales, "qzeros": in_words(zeros)}
        stored.update({f"{module}.{part}": array for part, array in packed.items()})
        zeros, steps = (np.repeat(array.astype(np.float32), GROUP, 1) for array in (zeros, scales))
        plain[f"{module}.weight"] = (codes.astype(np.float32) - zeros) * steps

    def unquantised(name: str, array: np.ndarray) -> None:
        stored[name] = plain[name] = array.astype(ml_dtypes.bfloat16)

    for layer in range(LAYERS):
        path = f"model.layers.{layer}"
        for name in ("q", "k", "v", "o"):
            quantised(f"{path}.self_attn.{name}_proj", HIDDEN, HIDDEN)
        quantised(f"{path}.mlp.gate_proj", FFN, HIDDEN)
        quantised(f"{path}.mlp.up_proj", FFN, HIDDEN)
        quantised(f"{path}.mlp.down_proj", HIDDEN, FFN)
        for name in ("input_layernorm", "post_attention_layernorm"):
            unquantised(f"{path}.{name}.weight", np.ones(HIDDEN))
    unquantised("model.embed_tokens.weight", random.normal(size=(VOCAB, HIDDEN)))
    unquantised("lm_head.weight", random.normal(size=(VOCAB, HIDDEN)) / 16)
    unquantised("model.norm.weight", np.ones(HIDDEN))
    words = dict(
        architectures=["LlamaForCausalLM"], model_type="llama", hidden_size=HIDDEN, intermediate_size=FFN,
        num_hidden_layers=LAYERS, num_attention_heads=HEADS, num_key_value_heads=HEADS, vocab_size=VOCAB,
        max_position_embeddings=128, rms_norm_eps=1e-5, tie_word_embeddings=False, hidden_act="silu",
    )  # fmt: skip
    folders = tmp_path_factory.mktemp("int4"), tmp_path_factory.mktemp("plain")
    for folder, tensors in zip(folders, (stored, plain), strict=True):
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})
        (folder / "config.json").write_text(json.dumps(words), "utf-8")
    (folders[0] / "adapter.py").write_text(ADAPTER, "utf-8")
    return folders


def job_of(folder: Path, dtype: str) -> Job:
    adapter = folder / "adapter.py"
    job = open_job(checkpoint=folder, dtype=dtype, adapter=adapter if adapter.is_file() else None)
    check(job).raise_if_errors()
    return job


def test_logits_are_those_of_the_values_it_stands_for(checkpoints: tuple[Path, Path]) -> None:
    stored, plain = (job_of(folder, "float32") for folder in checkpoints)
    packed = pack_job(stored)
    assert len(packed.names) == 7 * LAYERS
    assert not packed.floats
    tokens = parity.random_tokens(40, VOCAB)
    wanted, ours = (family.eager_logits(job, tokens, 36) for job in (plain, packed.job))
    assert abs(ours - wanted).max() <= 1e-5 * abs(wanted).max()


def test_bytes_are_less_than_a_third_of_bfloat16s(checkpoints: tuple[Path, Path]) -> None:
    """With groups of 32: half a byte a value, two for a scale and one for a zero of each group."""
    stored, plain = (dry_run(job_of(folder, "bfloat16"), "torch", 64) for folder in checkpoints)
    whole = stored.elements * 2
    assert plain.weights == whole
    rows = 2 * VOCAB * HIDDEN + (2 * LAYERS + 1) * HIDDEN
    assert stored.weights == (stored.elements - rows) * (16 + 2 + 1) // 32 + rows * 2
    assert stored.weights < whole / 3
