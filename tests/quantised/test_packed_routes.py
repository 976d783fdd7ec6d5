"""Weights kept packed give the logits of weights that were dequantised: fused, stacked, split and tied ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from transformers import DeepseekV3Config, GPTNeoXConfig, LlamaConfig, MixtralConfig, Phi3Config, PreTrainedConfig

from bringup.adapters.apply.parallel import Parallel
from bringup.adapters.checkpoints.safetensors import read_header
from bringup.cli.check import command
from bringup.compile.bundle.folder import WEIGHTS, read_manifest
from bringup.compile.convert.export import export_bundle
from bringup.compile.estimate.fit import fit
from bringup.compile.estimate.sizes import dry_run
from bringup.compile.job import Job, open_job
from bringup.compile.packed_job import pack_job
from bringup.compile.pipeline import build, check
from bringup.compile.runtime.session import load
from bringup.compile.targets.schedule import ScheduleTarget
from bringup.diagnostics import BringupError
from bringup.spec import TensorInfo
from tests.models import family, parity
from tests.quantised import fp8_checkpoints

CHECK = ["--format", "json", "--checkpoint"]
COMMON: dict[str, Any] = dict(vocab_size=96, num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=128)
CASES: dict[str, tuple[PreTrainedConfig, int]] = {  # with the block of scales
    "llama": (LlamaConfig(**COMMON, hidden_size=64, intermediate_size=96, num_key_value_heads=2), 16),
    "phi3": (  # rows of q, k and v, and of gate and up, are one matrix in the checkpoint
        Phi3Config(**COMMON, hidden_size=64, intermediate_size=96, num_key_value_heads=2, pad_token_id=0), 16,
    ),
    "gpt-neox": (GPTNeoXConfig(**COMMON, hidden_size=64, intermediate_size=96), 16),  # q, k and v alternate by head
    "mixtral": (  # a matrix for each expert, stacked
        MixtralConfig(**COMMON, hidden_size=64, intermediate_size=48, num_key_value_heads=2, num_local_experts=4), 16,
    ),
    "deepseek": (  # one matrix is keys and values, turned by head; its blocks are cut
        DeepseekV3Config(
            **COMMON, hidden_size=64, intermediate_size=96, num_key_value_heads=4, q_lora_rank=32, kv_lora_rank=32,
            qk_nope_head_dim=24, qk_rope_head_dim=8, v_head_dim=16, first_k_dense_replace=1, n_routed_experts=4,
            num_experts_per_tok=2, n_shared_experts=1, moe_intermediate_size=32, n_group=2, topk_group=1,
        ), 16,
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Job]:
    found: dict[str, Job] = {}
    for name, (config, block) in CASES.items():
        folder = fp8_checkpoints.write(config, tmp_path_factory.mktemp(name), block)
        found[name] = open_job(checkpoint=folder)
        check(found[name]).raise_if_errors()
    return found


@pytest.mark.parametrize("name", CASES)
def test_logits_are_those_of_the_float_route(jobs: dict[str, Job], name: str) -> None:
    job, packed = jobs[name], pack_job(jobs[name])
    assert not packed.floats
    assert len(packed.names) >= 2 * 4
    tokens = parity.random_tokens(40, 96)
    wanted, ours = (family.eager_logits(each, tokens, 36) for each in (job, packed.job))
    assert abs(ours - wanted).max() <= 1e-5 * abs(wanted).max()
    held = sum(entry.declared.nbytes for entry in packed.job.plan.entries.values())
    whole = sum(entry.declared.nbytes for entry in job.plan.entries.values())
    assert held < 0.65 * whole  # embedding and head, a third of these small models, are float32


def test_the_bytes_of_ranks(jobs: dict[str, Job]) -> None:
    """What `check` and `fit` say of one rank are the bytes of a bundle; of two, half of all that is divided."""
    job = jobs["llama"]
    one, two = (fit(job, 10**9, parallel=Parallel(tp=tp), context=64, packed=True).weights for tp in (1, 2))
    assert one == dry_run(job, "torch", 64).weights
    norms = sum(entry.declared.nbytes for entry in job.plan.entries.values() if len(entry.region.shape) == 1)
    assert two == (one - norms) // 2 + norms
    assert fit(job, 10**9, parallel=Parallel(), context=64).weights > 2 * one - 10 * norms
    for tp, each in ((1, one), (2, two)):
        done = CliRunner().invoke(command, [*CHECK, job.checkpoint.provenance["path"], "--tp", str(tp)])
        assert json.loads(done.output)["stored_bytes_per_rank"] == [each] * tp


@pytest.mark.slow
def test_a_bundle_on_torch(jobs: dict[str, Job], tmp_path: Path) -> None:
    """What was asked for is in the manifest; the dry run says the bytes; `export` gives the checkpoint back."""
    job = jobs["mixtral"]
    bundle = _assert_routes_agree(job, "torch", tmp_path)
    export_bundle(bundle, tmp_path / "published")
    published = read_header(tmp_path / "published" / "model.safetensors")
    assert published.keys() == job.checkpoint.headers.keys()
    for name, info in job.checkpoint.headers.items():
        assert (published[name].dtype, published[name].shape) == (info.dtype, info.shape)
        assert _bytes(published[name]) == _bytes(info), name


def _bytes(info: TensorInfo) -> bytes:
    assert info.file
    return info.file.read_bytes()[info.offset : info.offset + info.nbytes]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "mixtral", "deepseek"])
def test_a_bundle_on_cpu(jobs: dict[str, Job], name: str, tmp_path: Path) -> None:
    _assert_routes_agree(jobs[name], "cpu", tmp_path)


def _assert_routes_agree(job: Job, target: str, folder: Path) -> Path:
    """The packed bundle."""
    logits: dict[str, list[np.ndarray]] = {}
    tokens = parity.random_tokens(12, 96)
    for form in ("float", "auto"):
        out = build(job, out=folder / form, target=target, weights_form=form, max_seq_len=64, buckets=(8,))
        assert read_manifest(out)["weights_form"] == ("float" if form == "float" else "packed")
        session = load(out)
        logits[form] = [session.prefill(tokens[:7]), *(session.decode(token) for token in tokens[7:])]
        sizes = dry_run(job, target, 64, weights_form=form)
        assert 0 <= (out / WEIGHTS).stat().st_size - sizes.weights - sizes.tables < 64 * 1024  # header and alignment
    for wanted, ours in zip(logits["float"], logits["auto"], strict=True):
        assert abs(ours - wanted).max() <= 1e-5 * abs(wanted).max()
    return folder / "auto"


def test_packed_weights_of_a_float_checkpoint_are_refused(tmp_path: Path) -> None:
    parity.save_checkpoint(CASES["llama"][0], tmp_path)
    with pytest.raises(BringupError, match="BU410"):
        build(open_job(checkpoint=tmp_path), out=tmp_path / "b", target="torch", weights_form="packed")


def test_a_target_without_the_ops_dequantises_and_says_so(
    jobs: dict[str, Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ScheduleTarget, "supports_packed", False)
    sizes = dry_run(jobs["llama"], "schedule", 64)
    assert sizes.quantised_form == "14 parameters dequantised: target schedule does not support packed weights"
    with pytest.raises(BringupError, match="BU411"):
        dry_run(jobs["llama"], "schedule", 64, weights_form="packed")
