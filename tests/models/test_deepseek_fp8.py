"""DeepSeek-V3 and V3.2 in fp8 with a scale a block: checked, and loaded as what the payload times the scales is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import DeepseekV3Config, PreTrainedConfig
from transformers.models.deepseek_v32 import DeepseekV32Config

from bringup.compile.job import open_job
from bringup.compile.pipeline import check
from tests.models import family
from tests.models.test_deepseek_v3 import save_biased

BLOCK = 128
# No size is a multiple of the block, and a block of kv_b_proj holds rows of keys and values and of two heads.
SIZES: dict[str, Any] = dict(
    vocab_size=131, max_position_embeddings=1024, hidden_size=150, intermediate_size=130, num_hidden_layers=2,
    num_attention_heads=3, num_key_value_heads=3, q_lora_rank=140, kv_lora_rank=132, qk_nope_head_dim=50,
    qk_rope_head_dim=6, v_head_dim=40, first_k_dense_replace=1, n_routed_experts=4, num_experts_per_tok=2,
    n_shared_experts=1, moe_intermediate_size=20, n_group=2, topk_group=1,
)  # fmt: skip
CASES: dict[str, PreTrainedConfig] = {
    "v3": DeepseekV3Config(**SIZES),
    "v32": DeepseekV32Config(**SIZES, index_n_heads=13, index_head_dim=30, index_topk=9),
}
QUANTISED = ("_proj.weight", "with_mqa.weight", "wq_b.weight", "wk.weight")


def quantised(name: str) -> bool:
    return name.endswith(QUANTISED) and not name.endswith("weights_proj.weight")


def to_fp8(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Payload, scales, and what they stand for; block by block."""
    payload, exact = torch.empty_like(matrix, dtype=torch.float8_e4m3fn), torch.empty_like(matrix)
    rows, columns = (range(0, size, BLOCK) for size in matrix.shape)
    scales = torch.empty(len(rows), len(columns))
    for i, row in enumerate(rows):
        for k, column in enumerate(columns):
            part = slice(row, row + BLOCK), slice(column, column + BLOCK)
            scales[i, k] = matrix[part].abs().max() / 448
            payload[part] = (matrix[part] / scales[i, k]).to(torch.float8_e4m3fn)
            exact[part] = payload[part].float() * scales[i, k]
    return payload, scales, exact


@pytest.fixture(scope="module", params=CASES)
def folders(request, tmp_path_factory) -> tuple[Path, Path]:
    """The checkpoint in fp8, and one of the values that it stands for."""
    plain = save_biased(CASES[request.param], tmp_path_factory.mktemp("plain"))
    tensors = load_file(plain / "model.safetensors")
    stored = dict(tensors)
    for name in filter(quantised, tensors):
        stored[name], stored[f"{name}_scale_inv"], tensors[name] = to_fp8(tensors[name])
    assert 20 < sum(map(quantised, tensors)) < len(tensors)
    save_file(tensors, plain / "model.safetensors", metadata={"format": "pt"})
    fp8 = tmp_path_factory.mktemp("fp8")
    save_file(stored, fp8 / "model.safetensors", metadata={"format": "pt"})
    words = {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [BLOCK, BLOCK]}
    raw = json.loads((plain / "config.json").read_text("utf-8"))
    (fp8 / "config.json").write_text(json.dumps(raw | {"quantization_config": words}), "utf-8")
    return fp8, plain


def test_logits_are_those_of_the_values_it_stands_for(folders: tuple[Path, Path]) -> None:
    fp8, plain = folders
    job = open_job(checkpoint=str(fp8))
    assert not check(job).findings
    assert job.graph.dtype == "float32"
    tokens, wanted = family.reference(plain)
    ours = family.eager_logits(job, tokens, family.PROMPT)
    assert abs(ours - wanted).max() <= family.WORST["torch"] * abs(wanted).max()


def test_faults_are_found(folders: tuple[Path, Path], tmp_path: Path) -> None:
    fp8, _ = folders
    tensors = load_file(fp8 / "model.safetensors")
    gone = "model.layers.1.mlp.experts.2.up_proj.weight_scale_inv"
    short = "model.layers.0.self_attn.o_proj.weight_scale_inv"
    del tensors[gone]
    tensors[short] = tensors[short][:1].clone()
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((fp8 / "config.json").read_text("utf-8"), "utf-8")
    found = {finding.sources: finding for finding in check(open_job(checkpoint=str(tmp_path))).findings}
    assert found[gone,].code == "BU101"
    assert found[short,].code == "BU102"
    assert len(found) == 2
