"""bfloat16 against the reference's own rounding: families agree, and what is planted is found."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import GPT2Config, Qwen2Config

from bringup.adapters.sources.open_checkpoint import open_checkpoint
from bringup.compile.job import open_job
from bringup.compile.parity.feeds import Run, feed, sizes_of
from bringup.compile.parity.parity import TOLERANCE, Parity
from bringup.compile.parity.reference import Observed, Reference
from bringup.compile.pipeline import build
from bringup.compile.runtime.session import load
from bringup.compile.verify import command
from bringup.compile.verify.evidence import GRAPH, Evidence
from bringup.graphs.registry import FAMILIES
from tests.models import drafts, family, parity

DTYPE = "bfloat16"
# They take hidden states: `verify` has none, their logits are compared here.
DRAFTS = ("deepseek_mtp", "eagle3", "qwen3_mtp")
BOTH = {"llama": "smollm2-tied", "deepseek_v3": "groups-yarn"}  # by `torch` and for `iree-cpu` as well


def module_of(name: str) -> ModuleType:
    return import_module(f"tests.models.test_{name}")


def cases() -> Iterator[tuple[str, str, str]]:
    """A configuration of the families with different operations for `cpu`, some by other targets."""
    for name in (each.name for each in FAMILIES if each.name not in family.SAME_OPERATIONS):
        case = BOTH.get(name) or next(iter(module_of(name).CASES))
        yield name, case, "cpu"
    for name, case in BOTH.items():
        yield name, case, "torch"
        yield name, case, "iree-cpu"


@pytest.mark.slow
@pytest.mark.parametrize(("name", "case", "target"), list(cases()))
def test_a_sound_model_agrees(
    name: str, case: str, target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record_property
) -> None:
    written = family.written(module_of(name), case, tmp_path / "model", DTYPE)
    if name in DRAFTS:
        real = drafts.random_hidden  # its values, as the dtype has them: the references get them unrounded
        rounded = lambda count, m: real(count, m).astype(ml_dtypes.bfloat16).astype(np.float32)  # noqa: E731
        monkeypatch.setattr(drafts, "random_hidden", rounded)
        found = draft(written, target, tmp_path / "b")
    else:
        found = verified(written.checkpoint, written.reference, target, tmp_path / "b", monkeypatch)
    record_property("parity", figures(found))
    assert found.ok, (found.rows, found.findings)
    if name not in DRAFTS:
        assert {module.departs(found.tolerance) for module in found.modules} <= {False}


def verified(folder: Path, original: Path, target: str, out: Path, patch: pytest.MonkeyPatch) -> Parity:
    """A verification of one checkpoint against transformers' model of another."""
    checkpoint, job = open_checkpoint(str(original)), open_job(checkpoint=str(folder))
    assert job.graph.dtype == DTYPE
    patch.setattr(
        command, "Reference",
        lambda _, __, *dtypes, **options: Reference(checkpoint, checkpoint.config, *dtypes, **options),
    )  # fmt: skip
    context = min(80, job.graph.config.max_positions)
    session = load(build(job, out=out, target=target, max_seq_len=context, buckets=(64,), all_logits=True))
    return command.parity_of(session, job)


def draft(written: family.Written, target: str, out: Path) -> Parity:
    """The logits of a draft, in prefill and decode, as a verification compares them."""
    (tokens, rounded), (_, exact) = written.theirs(), written.theirs("float32")
    job = open_job(written.model, str(written.checkpoint))
    bundle = build(job, out=out, target=target, max_seq_len=len(tokens), buckets=(family.PROMPT,), all_logits=True)
    session = load(bundle)
    feeds = feed(session, tokens, [Run(family.PROMPT, family.STEPS)], written.inputs)
    reference = Observed("transformers", "float32", exact, {}, {})
    evidence = Evidence(job, sizes_of(session), reference, rounded, tokens, feeds)
    built = Parity(model=written.model, target=target, dtype=DTYPE, reference=reference.name, tolerance=TOLERANCE)
    built.differences += [evidence.exact(), evidence.phase(f"prefill_{family.PROMPT}"), evidence.phase("decode")]
    return built


def figures(found: Parity) -> str:
    """How often the errors contain their bounds, phase by phase."""
    return ", ".join(
        f"{d.phase} {d.excess:.2g}, scaled {d.scaled:.2g}" + f" ({d.undecided})" * bool(d.undecided)
        for d in found.differences
    )


# --- mistakes, planted in the checkpoint or its config

QWEN = Qwen2Config(
    vocab_size=131, num_hidden_layers=2, max_position_embeddings=256, hidden_size=48, intermediate_size=64,
    num_attention_heads=6, num_key_value_heads=6,
)  # fmt: skip
GPT = GPT2Config(vocab_size=131, n_positions=128, n_layer=2, n_head=3, n_embd=36)
Tensors = dict[str, torch.Tensor]
LAYER = "model.layers.1."


def swap(tensors: Tensors, one: str, other: str) -> None:
    tensors[one], tensors[other] = tensors[other].clone(), tensors[one].clone()


def set_words(folder: Path, words: dict[str, Any]) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text("utf-8")) | words), "utf-8")


def plus_one(tensors: Tensors) -> None:
    tensors["transformer.wpe.weight"] = tensors["transformer.wpe.weight"].roll(-1, 0)


def scale(name: str, factor: float) -> Callable[[Tensors], None]:
    def change(tensors: Tensors) -> None:
        tensors[name] = tensors[name] * factor

    return change


MISTAKES: dict[str, tuple[Any, Callable[[Tensors], None] | dict[str, Any], str]] = {
    "gate-and-up": (
        QWEN, lambda t: swap(t, f"{LAYER}mlp.gate_proj.weight", f"{LAYER}mlp.up_proj.weight"),
        "model.layers.1.mlp.gate_proj",
    ),
    "transposed-square": (
        QWEN, lambda t: t.update({f"{LAYER}self_attn.o_proj.weight": t[f"{LAYER}self_attn.o_proj.weight"].T.clone()}),
        "model.layers.1.self_attn.o_proj",
    ),
    "no-bias": (QWEN, scale(f"{LAYER}self_attn.v_proj.bias", 0.0), "model.layers.1.self_attn.v_proj"),
    "scale-of-a-norm": (QWEN, scale(f"{LAYER}input_layernorm.weight", 1.01), "model.layers.1.input_layernorm"),
    "scale-of-queries": (QWEN, scale(f"{LAYER}self_attn.q_proj.weight", 1.1), "model.layers.1.self_attn.q_proj"),
    "rope-base": (
        QWEN, {"rope_parameters": {"rope_type": "default", "rope_theta": 11000.0}}, "model.layers.0.self_attn"
    ),
    "epsilon": (QWEN, {"rms_norm_eps": 1e-4}, "model.layers.0.input_layernorm"),
    "position-plus-one": (GPT, plus_one, "transformer.wpe"),
    "unscaled-attention": (GPT, {"scale_attn_weights": False}, "transformer.h.0.attn"),
}  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name == "gate-and-up" else pytest.mark.slow) for name in MISTAKES],
)
def test_a_mistake_is_found(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record_property) -> None:
    config, change, module = MISTAKES[name]
    sound = parity.save_checkpoint(config, tmp_path / "sound", DTYPE)
    wrong = Path(shutil.copytree(sound, tmp_path / "wrong"))
    if isinstance(change, dict):
        set_words(wrong, change)
    else:
        tensors = load_file(wrong / "model.safetensors")
        change(tensors)
        save_file({key: value.contiguous() for key, value in tensors.items()}, wrong / "model.safetensors")
    found = verified(wrong, sound, "torch", tmp_path / "b", monkeypatch)
    record_property("parity", figures(found))
    assert found.differences[0].phase == GRAPH
    assert not found.differences[0].ok
    (finding,) = [finding for finding in found.findings if finding.severity == "error"]
    assert (finding.code, finding.parameter) == ("BU701", module)
