"""Weights quantised as they are loaded, written in a published format: what is read back is what was loaded.

Oracles: the job's own values, which test_quantise.py compares with numbers rounded one by one; transformers 5.23 with
compressed-tensors 0.20 and bitsandbytes 0.50, which load the same files.
"""

from __future__ import annotations

import json
import shutil
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from transformers import (
    CompressedTensorsConfig,
    DeepseekV3Config,
    DeepseekV32Config,
    FineGrainedFP8Config,
    GPTNeoXConfig,
    LlamaConfig,
    MixtralConfig,
    PreTrainedConfig,
)

from bringup.adapters.apply.materialise import materialise
from bringup.cli.main import cli
from bringup.compile.check.values import value_findings
from bringup.compile.convert.export import export, export_bundle
from bringup.compile.job import Job, open_job
from bringup.compile.pipeline import build, check
from bringup.diagnostics import BringupError
from bringup.graphs import GraphOptions
from tests.convert import models
from tests.convert.test_convert import save
from tests.models import family as shown
from tests.models import parity
from tests.quantised.test_bitsandbytes import dequantised
from tests.quantised.test_official import official

RECIPES = ("int8", "int4-g32", "fp8", "fp8-block", "mxfp4")
COMMON = {"vocab_size": 131, "num_hidden_layers": 2, "max_position_embeddings": 256, "num_attention_heads": 4}
CASES: dict[str, PreTrainedConfig] = {  # sizes are multiples of 128, as transformers' blocks of fp8 have to be
    "llama": LlamaConfig(
        **COMMON, hidden_size=128, intermediate_size=256, num_key_value_heads=4, tie_word_embeddings=True
    ),
    "gpt_neox": GPTNeoXConfig(**COMMON, hidden_size=128, intermediate_size=256),
    "mixtral": MixtralConfig(
        **COMMON, hidden_size=128, intermediate_size=256, num_key_value_heads=4, num_local_experts=2,
        num_experts_per_tok=1,
    ),
    "deepseek_v3": DeepseekV3Config(
        **COMMON, hidden_size=128, intermediate_size=256, num_key_value_heads=4, q_lora_rank=128, kv_lora_rank=96,
        qk_nope_head_dim=64, qk_rope_head_dim=32, v_head_dim=64, first_k_dense_replace=1, n_routed_experts=2,
        num_experts_per_tok=1, n_shared_experts=1, moe_intermediate_size=128, n_group=1, topk_group=1,
    ),
    "deepseek_v32": DeepseekV32Config(  # no checkpoint quantises the indexer's weights_proj
        **COMMON, hidden_size=128, intermediate_size=256, num_key_value_heads=4, q_lora_rank=128, kv_lora_rank=96,
        qk_nope_head_dim=64, qk_rope_head_dim=32, v_head_dim=64, first_k_dense_replace=2, index_n_heads=4,
        index_head_dim=64, index_topk=16,
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("floats")
    for name, config in CASES.items():
        parity.save_checkpoint(config, place / name)
    return place


@pytest.mark.parametrize(("recipe", "family"), [*product(RECIPES, CASES), ("nf4", "llama"), ("nf4", "mixtral")])
def test_the_values_come_back(recipe: str, family: str, folder: Path, tmp_path: Path) -> None:
    """Bit for bit; the file says the same of which matrices are quantised, and a check of values passes it."""
    job = open_job(checkpoint=str(folder / family), options=GraphOptions(quantize=recipe))
    export(job, tmp_path / "out")
    again = open_job(checkpoint=str(tmp_path / "out"))
    assert not check(again).findings
    assert value_findings(again) == []
    wanted, found = materialise(job.plan, job.checkpoint), materialise(again.plan, again.checkpoint)
    assert found.keys() == wanted.keys()
    for name, array in found.items():
        np.testing.assert_array_equal(array, wanted[name], name)
    plain = materialise((floats := open_job(checkpoint=str(folder / family))).plan, floats.checkpoint)
    assert sum(not np.array_equal(plain[name], array) for name, array in found.items()) >= 8


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.filterwarnings("ignore:You passed `quantization_config`:UserWarning")
def test_transformers_computes_the_same(recipe: str, folder: Path, tmp_path: Path) -> None:
    """By its official loader: the logits of bringup's own quantised weights."""
    job = open_job(checkpoint=str(folder / "llama"), options=GraphOptions(quantize=recipe))
    export(job, tmp_path / "out")
    config = FineGrainedFP8Config if recipe == "fp8-block" else CompressedTensorsConfig
    assert_same_logits(job, official(tmp_path / "out", quantization_config=config(dequantize=True)))


@pytest.mark.parametrize("recipe", ["int8", "int4-g32", "fp8", "fp8-block", "nf4"])
def test_transformers_reads_it_without_settings(recipe: str, folder: Path, tmp_path: Path) -> None:
    """`from_pretrained` alone, which keeps weights as stored: the format is that which the config states. mxfp4 is left
    out, because compressed-tensors multiplies it in bfloat16, which a model in float32 cannot."""
    job = open_job(checkpoint=str(folder / "llama"), options=GraphOptions(quantize=recipe))
    export(job, tmp_path / "out")
    model = official(tmp_path / "out")
    if recipe == "nf4":  # on a CPU with bfloat16, bitsandbytes 0.50 multiplies in it
        matrices, model = dict(dequantised(model)), official(folder / "llama")
        assert len(matrices) == 14
        for name, matrix in matrices.items():
            model.get_submodule(name).weight.data = matrix.float()
    assert_same_logits(job, model)


def assert_same_logits(job: Job, model: torch.nn.Module) -> None:
    tokens = list(range(1, shown.PROMPT + 4))
    wanted = shown.stepwise(model, tokens, shown.PROMPT)
    ours = shown.eager_logits(job, tokens, shown.PROMPT)
    assert abs(ours - wanted).max() <= shown.WORST["torch"] * abs(wanted).max()


def test_the_command_and_its_files(folder: Path, tmp_path: Path) -> None:
    words = ["export", "--checkpoint", str(folder / "llama"), "--quantize", "int4-g64", "-o", str(tmp_path / "out")]
    done = CliRunner().invoke(cli, words)
    assert done.exit_code == 0, done.output
    config = json.loads((tmp_path / "out/config.json").read_text("utf-8"))["quantization_config"]
    assert (config["quant_method"], config["format"]) == ("compressed-tensors", "pack-quantized")
    assert {"lm_head", "model.embed_tokens"} <= {*config["ignore"]}
    with safe_open(tmp_path / "out/model.safetensors", "np") as file:
        names = {*file.keys()}
        packed = file.get_slice("model.layers.0.mlp.up_proj.weight_packed")
        assert (packed.get_dtype(), packed.get_shape()) == ("I32", [256, 16])
    assert "model.layers.0.mlp.up_proj.weight" not in names
    assert "model.embed_tokens.weight" in names


def test_matrices_the_other_way_round_are_refused(tmp_path: Path) -> None:
    """GPT-2's are [in, out], of which compressed-tensors has no scale a row; blocks of fp8 are alike either way."""
    source = save(tmp_path / "gpt2", *models.gpt2())
    job = open_job(checkpoint=str(source), options=GraphOptions(quantize="int8"))
    with pytest.raises(BringupError, match=r"BU143.*is not a module"):
        export(job, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    job = open_job(checkpoint=str(source), options=GraphOptions(quantize="fp8-block"))
    export(job, tmp_path / "blocks")
    assert not check(open_job(checkpoint=str(tmp_path / "blocks"))).findings


def test_a_bundle_gives_the_same_files_while_its_checkpoint_is_there(folder: Path, tmp_path: Path) -> None:
    source = shutil.copytree(folder / "llama", tmp_path / "source")
    job = open_job(checkpoint=str(source), options=GraphOptions(quantize="fp8"))
    export(job, tmp_path / "own")
    bundle = build(job, out=tmp_path / "b", target="torch", max_seq_len=64, buckets=(16,))
    export_bundle(bundle, tmp_path / "of bundle")
    for file in ("model.safetensors", "config.json"):
        assert (tmp_path / "of bundle" / file).read_bytes() == (tmp_path / "own" / file).read_bytes()
    with pytest.raises(BringupError, match=r"BU143.*no tensors that the adapter drops"):
        export_bundle(bundle, tmp_path / "with", with_dropped=job.checkpoint)
    for options, message in (
        (["--quantize", "int8"], "dtypes and context = help: leave out --quantize"),
        (["--revision", "main"], "--revision applies to a checkpoint hf://"),
    ):
        refused = CliRunner().invoke(cli, ["export", str(bundle), *options, "-o", str(tmp_path / "other")])
        assert refused.exit_code == 2
        assert message in " ".join(refused.stderr.split())
    file = source / "model.safetensors"
    tensors = {name: -array for name, array in load_file(file).items()}
    save_file(tensors, file, {"format": "pt"})
    with pytest.raises(BringupError, match=r"BU143.*has other values for `model.embed_tokens.weight`"):
        export_bundle(bundle, tmp_path / "changed")
    shutil.rmtree(source)
    with pytest.raises(BringupError, match=r"BU143.*quantised as they were loaded"):
        export_bundle(bundle, tmp_path / "late")
