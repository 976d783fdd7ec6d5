"""`bringup fit`, compared with the sizes that papers and configs give, computed by hand."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import bringup as package
from bringup.adapters.apply.parallel import Parallel
from bringup.compile.estimate.fit import fit
from bringup.compile.job import Job, in_dtype, open_job
from bringup.diagnostics import BringupError
from tests.cli.conftest import Bringup
from tests.quantised.checkpoints import write
from tests.quantised.formats import FORMATS

CONFIGS = Path(__file__).parents[1] / "flagships" / "configs"


@cache
def job_of(name: str) -> Job:
    config = json.loads((CONFIGS / f"{name}.json").read_text("utf-8"))
    return in_dtype(open_job(None, "dummy", config=config), "bfloat16")


@cache
def need(name: str, **words: Any):
    job = job_of(name)
    parallel = Parallel(**{key: words.pop(key) for key in ("tp", "ep", "pp", "stage_layers") if key in words})
    return fit(job, 141 * 10**9, parallel=parallel, context=32768, **words)


def test_llama_405b_on_eight_ranks() -> None:
    """126 layers, 8 key heads of 128 channels: one on each rank. 405.85 B weights, of which norms are on every rank."""
    found = need("llama-3.1-405b", tp=8, batch=4)
    assert found.cache_each == 126 * 2 * 128 * 32768 * 2
    assert found.cache == 4 * found.cache_each
    assert found.weights == pytest.approx(405.85e9 * 2 / 8, rel=1e-3)
    assert found.fits
    assert found.largest_batch >= 4


def test_key_heads_are_repeated() -> None:
    assert need("llama-3.1-405b", tp=16).cache_each == need("llama-3.1-405b", tp=8).cache_each


def test_a_narrower_cache_and_pages() -> None:
    wide, narrow = need("llama-3.1-405b", tp=8), need("llama-3.1-405b", tp=8, cache_dtype="float8_e4m3fn")
    assert narrow.cache_each * 2 == wide.cache_each
    paged = need("llama-3.1-405b", tp=8, page_size=40000)
    assert paged.cache_each == 126 * 2 * 128 * 40000 * 2


@pytest.mark.parametrize("family", ["lfm2_moe", "qwen3_moe"])
def test_workspace_has_the_outputs_of_each_expert_of_a_token(family: str) -> None:
    """Gate, up and down of 3 more experts for each of 64 tokens, in float32."""
    config: dict[str, Any] = {
        **{"hidden_size": 32, "intermediate_size": 40, "moe_intermediate_size": 24, "vocab_size": 97, "num_experts": 8},
        **{"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8},
        **{"layer_types": ["full_attention"] * 2, "num_dense_layers": 0, "max_position_embeddings": 64},
    }
    if family == "qwen3_moe":
        config = {key: value for key, value in config.items() if key not in ("layer_types", "num_dense_layers")}
    one, four = (
        fit(
            open_job(family, "dummy", config=config | {"num_experts_per_tok": count}), 10**9, parallel=Parallel(),
            context=64,
        ).workspace
        for count in (1, 4)
    )  # fmt: skip
    assert four - one == 64 * 3 * (24 + 24 + 32) * 4


def test_recurrent_states_are_divided_among_ranks() -> None:
    """Of 2 of 4 key heads: 3 tokens of 2 · 8 + 2 · 6 channels, and a matrix of [8, 6] for each of 4 value heads."""
    config: dict[str, Any] = {
        **{"hidden_size": 32, "intermediate_size": 40, "moe_intermediate_size": 24, "vocab_size": 97, "num_experts": 4},
        **{"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8},
        **{
            "linear_num_key_heads": 4,
            "linear_num_value_heads": 8,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 6,
        },
        **{"layer_types": ["linear_attention"] * 2, "num_experts_per_tok": 2, "shared_expert_intermediate_size": 24},
    }
    job = open_job("qwen3_next", "dummy", config=config)
    found = fit(job, 10**9, parallel=Parallel(tp=2), context=64, cache_dtype="float8_e4m3fn")
    assert found.cache_each == 2 * 4 * (3 * 2 * (2 * 8 + 2 * 6) + 4 * 8 * 6)  # in float32, whatever the cache has


def test_states_of_concatenated_channels_are_divided_part_by_part() -> None:
    """Of 2 of 4 heads of Mamba 2: 3 tokens of their 2 · 16 channels and of b and c, 10 each, on both ranks."""
    config: dict[str, Any] = {
        **{"hidden_size": 32, "intermediate_size": 40, "vocab_size": 97, "num_hidden_layers": 2, "mamba_n_heads": 4},
        **{"num_attention_heads": 4, "num_key_value_heads": 2, "mamba_d_state": 10, "max_position_embeddings": 64},
    }
    found = fit(open_job("bamba", "dummy", config=config), 10**9, parallel=Parallel(tp=2), context=64)
    assert found.cache_each == 2 * 4 * (3 * (2 * 16 + 2 * 10) + 2 * 10 * 16)


def test_ranks_that_cut_a_block(tmp_path: Path) -> None:
    """Of 96 columns in groups of 32 a half has one group and a half: it can be dequantised, but not stay packed."""
    job = open_job(checkpoint=str(write("llama", FORMATS["ct-int4"], tmp_path)[0]))
    with pytest.raises(BringupError, match="BU136"):
        fit(job, 10**9, parallel=Parallel(tp=2), context=64, packed=True)
    found = fit(job, 10**9, parallel=Parallel(tp=2), context=64)
    ranks = [package.adapt(job, tp=2, rank=rank) for rank in range(2)]
    assert found.weights == max(sum(array.nbytes for array in arrays.values()) for arrays in ranks)


def test_the_fullest_stage_is_the_one_with_most_layers() -> None:
    found = need("llama-3.1-405b", tp=8, pp=2, stage_layers=(64, 62), batch=64)
    assert found.cache_each == 64 * 2 * 128 * 32768 * 2


@pytest.mark.slow
def test_a_latent_cache_is_on_every_rank() -> None:
    """DeepSeek-V3: 512 + 64 channels a token and layer, which tensor parallelism does not divide."""
    found = need("deepseek-v3", tp=8)
    assert found.cache_each == 61 * 576 * 32768 * 2
    assert not found.fits


def test_stages_and_what_would_be_enough(bringup: Bringup) -> None:
    one, two = need("llama-3.1-405b", tp=8), need("llama-3.1-405b", tp=8, pp=2)
    assert two.cache_each * 2 == one.cache_each
    assert 0.49 < two.weights / one.weights < 0.53  # the embedding or the head besides half of the layers
    small = need("llama-3.1-405b", tp=2)
    assert (small.fits, small.enough_ranks, small.largest_batch) == (False, 8, 0)


def test_the_command(bringup: Bringup) -> None:
    words = ["--checkpoint", "dummy", "--config", CONFIGS / "llama-3.1-405b.json", "--ctx", "32k", "--batch", 4]
    result = bringup("fit", *words, "--device", "h200", "--tp", 8)
    assert result.exit_code == 0, result.output
    assert re.search(r"^weights +101\.\d GB on the fullest of 8 ranks, bfloat16$", result.stdout, re.MULTILINE)
    assert "cache         8.5 GB: 4 sequences of 32,768 tokens, 2.1 GB each, bfloat16" in re.sub(
        r"^cache +", "cache         ", result.stdout, flags=re.MULTILINE
    )
    assert "note" not in result.stderr
    longer = bringup("fit", *words[:4], "--device", "h200", "--max-seq-len", "1024k", "--tp", 8)
    assert "note: the model has 131,072 positions, fewer than --ctx" in longer.stderr
    short = bringup("fit", *words, "--device", "24GB", "--tp", 8)
    assert (short.exit_code, "does not fit" in short.stdout) == (1, True)
    assert "did you mean `h200`?" in bringup("fit", *words, "--device", "h20").stderr
    assert "is not a number of tokens" in bringup("fit", *words[:4], "--device", "h200", "--ctx", "many").stderr
