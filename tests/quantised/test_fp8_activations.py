"""`--activations fp8`: whole models on `cuda:…` in the emulator and by torch, next to the operations' own formulas."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.torch import load_file, save_file
from transformers import DeepseekV3Config, LlamaConfig, MixtralConfig, PreTrainedConfig

from bringup.cli.main import cli
from bringup.compile.bisect.eager import Eager
from bringup.compile.job import Job, open_job
from bringup.compile.packed_job import pack_job
from bringup.compile.parity.rounding import bound_of, judge
from bringup.compile.pipeline import build
from bringup.compile.runtime.session import load
from bringup.compile.targets.selection import select
from bringup.compile.verify.evidence import GRAPH, exact, rounding
from bringup.diagnostics import BringupError
from bringup.graphs.core.options import GraphOptions
from bringup.graphs.layers.packed_weight import PackedWeight
from tests.models import parity
from tests.quantised import fp8_checkpoints
from tests.quantised.checkpoints import write
from tests.quantised.formats import FORMATS
from tests.schedule.models import COMMON, CONTEXT, PREFILL, VOCAB, schedule_of

FP8 = GraphOptions(activations="fp8")
BLOCK = 16
# Of the largest logit. Sums of float32 in another order change an activation's last bit, and one of these may round to
# the other of two codes, which are 1/16 apart; 3e-7 where none does.
SAME = 2e-3
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}
SIZES = {**COMMON, "hidden_size": 64, "intermediate_size": 96, **HEADS}
MLA = {
    "q_lora_rank": 24, "kv_lora_rank": 32, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 16,
    "first_k_dense_replace": 1, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1,
    "moe_intermediate_size": 32, "n_group": 2, "topk_group": 1, "num_key_value_heads": 4,
}  # fmt: skip
CONFIGS: dict[str, PreTrainedConfig] = {
    "llama": LlamaConfig(**SIZES),
    "deepseek_v3": DeepseekV3Config(**SIZES | MLA),
    "mixtral": MixtralConfig(**SIZES | {"intermediate_size": 48}, num_local_experts=4),
}


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fp8_checkpoints.write(CONFIGS["llama"], tmp_path_factory.mktemp("fp8") / "llama", BLOCK)


def source(name: str, folder: Path) -> Path:
    return fp8_checkpoints.write(CONFIGS[name], folder / "checkpoint", BLOCK)


def built(job: Job, target: str, folder: Path) -> Path:
    out = folder / target.partition(":")[0]
    return build(job, out=out, target=target, max_seq_len=CONTEXT, buckets=(PREFILL,))


def logits(bundle: Path, executor: str | None, tokens: list[int]) -> np.ndarray:
    session = load(bundle, executor)
    found = [session.prefill(tokens[:7]), *(session.decode(token) for token in tokens[7:])]
    return np.stack([each.reshape(-1, VOCAB)[-1] for each in found])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "card"),
    [
        *((name, "sm_90") for name in ("llama", "deepseek_v3", "mixtral")),
        *(("llama", card) for card in ("sm_80", "sm_89")),
    ],
)
def test_logits_are_those_of_the_graph(name: str, card: str, tmp_path: Path) -> None:
    """Of `torch`, of the schedule by torch and of its kernels; and not those of activations in floats."""
    folder = source(name, tmp_path)
    job, tokens = open_job(checkpoint=folder, options=FP8), parity.random_tokens(9, VOCAB)
    wanted = logits(built(job, "torch", tmp_path), None, tokens)
    bundle = built(job, f"cuda:{card}", tmp_path)
    assert json.loads((bundle / "manifest.json").read_text("utf-8"))["graph_options"] == FP8.non_default()
    largest = abs(wanted).max()
    for executor in ("reference", "emulate"):
        assert abs(logits(bundle, executor, tokens) - wanted).max() <= SAME * largest, executor
    graph = Eager(rounding(job), 32).whole(tokens)[6:]
    assert abs(wanted - graph).max() <= SAME * largest
    floats = Eager(exact(job), 32).whole(tokens)[6:]
    assert abs(floats - wanted).max() > 2 * SAME * largest


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["fp8", "fp8-block"])
def test_weights_that_are_quantised_as_they_are_loaded(recipe: str, tmp_path: Path) -> None:
    """One scale a row: one for each token's row of activations. And blocks of 128 of narrower matrices."""
    folder = parity.save_checkpoint(CONFIGS["llama"], tmp_path / "checkpoint")
    job = open_job(checkpoint=folder, options=replace(FP8, quantize=recipe))
    tokens = parity.random_tokens(9, VOCAB)
    wanted = logits(built(job, "torch", tmp_path), None, tokens)
    bundle = built(job, "cuda:sm_90", tmp_path)
    for executor in ("reference", "emulate"):
        assert abs(logits(bundle, executor, tokens) - wanted).max() <= SAME * abs(wanted).max(), executor


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "form"),
    [("llama", "fp8-tensor"), ("llama", "modelopt-fp8"), ("qwen3_moe", "fp8-tensor"), ("phi3", "fp8-tensor")],
)
def test_scales_of_the_checkpoint(name: str, form: str, tmp_path: Path) -> None:
    """Activations are divided by `input_scale`, and by another one where the checkpoint has another."""
    folder, _ = write(name, FORMATS[form], tmp_path)
    job = open_job(checkpoint=folder, options=FP8)
    vocab = job.graph.config.vocab_size
    tokens = parity.random_tokens(9, vocab)

    def found(target: str, executor: str | None, out: str) -> np.ndarray:
        own = open_job(checkpoint=folder, options=FP8)
        bundle = build(own, out=tmp_path / out, target=target, max_seq_len=64, buckets=(16,))
        session = load(bundle, executor)
        given = [session.prefill(tokens[:7]), *(session.decode(token) for token in tokens[7:])]
        return np.stack([each.reshape(-1, vocab)[-1] for each in given])

    wanted = found("torch", None, "torch")
    for executor in ("reference", "emulate"):
        logits = found("cuda:sm_90", executor, executor)
        assert abs(logits - wanted).max() <= SAME * abs(wanted).max(), executor
    packed = pack_job(job).job
    scales = [each for each in packed.plan.entries if each.endswith(".input_scales")]
    assert len(scales) == len([part for part in packed.graph.parts() if isinstance(part, PackedWeight)])
    assert "input_scales" not in str(pack_job(open_job(checkpoint=folder)).job.plan.entries)
    file = folder / "model.safetensors"
    tensors = load_file(file)
    save_file({key: each * 40 if key.endswith("input_scale") else each for key, each in tensors.items()}, file)
    assert abs(found("torch", None, "other") - wanted).max() > 2 * SAME * abs(wanted).max()


def test_launches_round_where_rows_are_computed(llama: Path, tmp_path: Path) -> None:
    """A norm and the gated MLP give codes; only what attention gives is rounded by a launch of its own."""
    settings = {"target": "cuda:sm_90", "max_seq_len": CONTEXT, "buckets": (PREFILL,), "emit": "schedule"}
    job = open_job(checkpoint=llama, options=FP8)
    text = build(job, out=tmp_path / "schedule.txt", **settings).read_text("utf-8")
    decode = [
        line.split(": ")[-1] for line in text[text.index("# decode:") :].splitlines() if "model.layers.0: " in line
    ]
    kinds = [line.split(" -> ")[0] for line in decode]
    assert [kind for kind in kinds if "to_fp8" in kind] == [
        "rms_norm+to_fp8", "to_fp8", "rms_norm+to_fp8", "fp8_linear*2+silu+mul+to_fp8",
    ]  # fmt: skip
    assert sum("fp8_linear" in kind for kind in kinds) == 6  # q, k, v, o, gate with up, down
    columns = next(line for line in text[text.index("# decode:") :].splitlines() if "silu+mul+to_fp8" in line).split()
    hidden, inner = 64, 96
    assert columns[3:5] == [f"{hidden + hidden // BLOCK * 4}", f"{inner + inner // BLOCK * 4}"]


def test_passes_may_be_left_out(llama: Path, tmp_path: Path) -> None:
    job, tokens = open_job(checkpoint=llama, options=FP8), parity.random_tokens(9, VOCAB)
    settings = {"target": "schedule", "max_seq_len": CONTEXT, "buckets": (PREFILL,)}
    fused = build(job, out=tmp_path / "fused", **settings)
    wanted, fewest = logits(fused, None, tokens), len(list(schedule_of(fused).launches("decode")))
    for name in ("share-fp8", "fuse-fp8"):
        apart = build(job, out=tmp_path / name, target_options={"passes": f"-{name}"}, **settings)
        assert len(list(schedule_of(apart).launches("decode"))) > fewest
        np.testing.assert_array_equal(logits(apart, None, tokens), wanted)


def test_the_bound_is_what_rounding_moves(llama: Path) -> None:
    """Logits of the rounding graph are within it, and those that are five times as far are not."""
    job = open_job(checkpoint=llama, options=FP8)
    tokens = parity.random_tokens(16, VOCAB)
    wanted, floats = (Eager(each, 32).whole(tokens) for each in (rounding(job), exact(job)))
    bound = bound_of(floats, wanted, "float32")
    assert bound.noise is not None
    median = float(np.median(bound.noise))
    assert judge("decode", wanted, bound, median).ok
    assert not judge("decode", floats + 5 * (wanted - floats), bound, median).ok


@pytest.mark.parametrize(
    ("form", "target", "executor"),
    [
        ("ct-fp8-tensor", "schedule", None),
        pytest.param("fp8-blocks", "cuda:sm_90", "reference", marks=pytest.mark.slow),
        pytest.param("fp8-blocks", "torch", None, marks=pytest.mark.slow),
        pytest.param("fp8-blocks", "cuda:sm_90", "emulate", marks=pytest.mark.slow),
        pytest.param("ct-fp8-tensor", "cuda:sm_80", "emulate", marks=pytest.mark.slow),
    ],
)
def test_verify(form: str, target: str, executor: str | None, llama: Path, tmp_path: Path) -> None:
    """The command, next to transformers: the graph in float32, and the target's logits by what rounding moves them."""
    folder = llama if form == "fp8-blocks" else write("llama", FORMATS[form], tmp_path)[0]
    words = ["verify", "--checkpoint", str(folder), "--target", target, "--activations", "fp8", "--max-seq-len", "64"]
    result = CliRunner().invoke(cli, [*words, *(["--executor", executor] if executor else []), "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    phases = {each["phase"]: each for each in found["differences"]}
    assert list(phases) == [GRAPH, "prefill_32", "prefill_64", "decode"]
    assert phases[GRAPH]["relative"] < 1e-5
    rounded = [each["relative"] for name, each in phases.items() if name != GRAPH]  # activations are
    assert min(rounded) > 1e-2


@pytest.mark.slow
def test_bisect_of_a_schedule(llama: Path) -> None:
    """Its target has an option whose default is an empty text."""
    words = ["verify", "--checkpoint", str(llama), "--target", "schedule", "--bisect", "--max-seq-len", "64"]
    result = CliRunner().invoke(cli, words)
    assert result.exit_code == 0, result.output
    assert "agrees on schedule" in result.stdout


def test_verify_refuses_an_executor_before_it_compiles(llama: Path) -> None:
    words = ["verify", "--checkpoint", str(llama), "--target", "cuda:sm_90", "--executor", "emulated"]
    result = CliRunner().invoke(cli, words)
    assert result.exit_code != 0
    assert "error[BU018]: a cuda:sm_90 bundle has no executor `emulated`" in result.stderr
    assert "did you mean `emulate`?" in result.stderr
    assert "Lowered" not in result.stderr


def test_which_weights_it_is_of(llama: Path) -> None:
    """The matrices in float8; not the embedding, nor the head."""
    packed = pack_job(open_job(checkpoint=llama, options=FP8)).job.graph
    weights = [part for part in packed.parts() if isinstance(part, PackedWeight)]
    assert len(weights) == 2 * 7
    assert {part.activations for part in weights} == {"fp8"}


def test_refusals(llama: Path, tmp_path: Path) -> None:
    job = open_job(checkpoint=llama, options=FP8)
    for target in ("llvm", "iree-cpu", "rocm:gfx942"):
        with pytest.raises(BringupError, match="BU024") as caught:
            select(target).check_activations(job.graph)
        assert "`cuda:sm_90`" in caught.value.findings[0].help
    with pytest.raises(BringupError, match="BU410"):
        build(job, out=tmp_path / "b", target="torch", weights_form="float")
    folder = parity.save_checkpoint(CONFIGS["llama"], tmp_path / "plain")
    for options in (FP8, replace(FP8, quantize="int8")):
        with pytest.raises(BringupError, match="BU410") as caught:
            build(open_job(checkpoint=folder, options=options), out=tmp_path / "b", target="cuda:sm_90")
        assert "leave --activations out" in caught.value.findings[0].help
