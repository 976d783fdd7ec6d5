"""Blocks of GGUF that stay packed, in a family of each kind: transformers' logits of what the blocks stand for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import pytest
from safetensors.numpy import load_file, save_file
from transformers import DeepseekV2Config

from bringup.compile.job import open_job
from bringup.compile.packed_job import pack_job
from tests.adapters import gguf_families, llama_cpp, test_dialects
from tests.models import family, parity
from tests.quantised.checkpoints import WHOLE_WORDS, WORDS

ARCH, TYPE = gguf.MODEL_ARCH, gguf.GGMLQuantizationType
OF_LLAMA = {"words": test_dialects.words, "tensors": llama_cpp.all_in_pairs}
# Files of 2024 have keys' and values' matrix of MLA whole: its rows are those that transformers has.
MLA = DeepseekV2Config(
    **WORDS, intermediate_size=96, num_key_value_heads=4, q_lora_rank=64, kv_lora_rank=64, qk_nope_head_dim=16,
    qk_rope_head_dim=32, v_head_dim=16, first_k_dense_replace=1, n_routed_experts=4, num_experts_per_tok=2,
    n_shared_experts=1, moe_intermediate_size=32,
)  # fmt: skip
CASES: dict[str, tuple[gguf.GGMLQuantizationType, gguf.MODEL_ARCH, Any, dict[str, Any]]] = {
    "dense": (TYPE.Q4_1, ARCH.LLAMA, WHOLE_WORDS["llama of words"], OF_LLAMA),
    "fused": (TYPE.Q4_0, ARCH.PHI3, WHOLE_WORDS["phi3 of words"], {"words": test_dialects.words}),
    "experts": (TYPE.Q8_0, ARCH.LLAMA, WHOLE_WORDS["mixtral of words"], OF_LLAMA),
    "mla": (TYPE.Q5_1, ARCH.DEEPSEEK2, MLA, {"words": gguf_families.deepseek_of_2024}),
}


@pytest.mark.parametrize("name", CASES)
def test_logits(name: str, tmp_path: Path) -> None:
    """gguf-py rounds the model's matrices, and writes the same codes of what it has rounded."""
    kind, arch, config, options = CASES[name]
    folder = parity.save_checkpoint(config, tmp_path / "exact")
    tensors = load_file(folder / "model.safetensors")
    for key, array in tensors.items():
        if array.ndim > 1 and array.shape[-1] % 32 == 0:
            tensors[key] = gguf.dequantize(gguf.quantize(array, kind), kind)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    job = open_job(None, str(llama_cpp.convert(folder, tmp_path / "m.gguf", arch, kind=kind, **options)))
    packed = pack_job(job)
    assert len(packed.names) >= 8, packed.summary
    tokens = parity.random_tokens(20, job.graph.config.vocab_size)
    wanted = family.stepwise(parity.load_reference(folder), tokens, 17)
    floats, ours = (family.eager_logits(each, tokens, 17) for each in (job, packed.job))
    assert abs(floats - wanted).max() <= family.WORST["torch"] * abs(wanted).max()
    assert abs(ours - floats).max() <= 1e-5 * abs(floats).max()
