"""Quantised checkpoints of which some layers were kept as they were: a draft's beside its model, or a model's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import DeepseekV3Config

from bringup.adapters.algebra.computed import Computed
from bringup.compile.job import open_job
from bringup.compile.pipeline import check
from bringup.graphs.config.fields import Fields
from bringup.graphs.config.unquantized import MOST, UnquantizedModules
from tests.models import drafts, family
from tests.models.test_deepseek_fp8 import BLOCK, SIZES, quantised, to_fp8
from tests.models.test_deepseek_mtp import PROMPT, arrays, opened

CONFIG = DeepseekV3Config(**SIZES)
LAYERS, EXPERTS = CONFIG.num_hidden_layers, CONFIG.n_routed_experts
FP8 = {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [BLOCK, BLOCK]}
DRAFT = f"model.layers.{LAYERS}"


def of_draft(name: str) -> bool:
    return name.startswith(f"{DRAFT}.")


def by_name() -> list[str]:
    """Every matrix of the draft's layer, each by its own name."""
    attention = ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj")
    places = [*(f"mlp.experts.{number}" for number in range(EXPERTS)), "mlp.shared_experts"]
    names = [f"{DRAFT}.self_attn.{x}" for x in attention]
    return names + [f"{DRAFT}.{place}.{x}_proj" for place in places for x in ("gate", "up", "down")]


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> Path:
    return drafts.save(CONFIG, tmp_path_factory.mktemp("plain"))


def in_fp8(folder: Path, out: Path, unquantized, said: dict[str, Any]) -> Path:
    """The checkpoint with its matrices in fp8, but those that are `unquantized`; `said` goes into its config."""
    tensors, config = drafts.read(folder)
    stored = dict(tensors)
    for name in filter(quantised, tensors):
        if not unquantized(name) and "eh_proj" not in name:
            stored[name], stored[f"{name}_scale_inv"], _ = to_fp8(tensors[name])
    assert any(name.endswith("scale_inv") for name in stored)
    return drafts.write(out, stored, config | {"quantization_config": FP8 | said})


def dequantised(folder: Path, out: Path) -> Path:
    """The checkpoint with the values that it stands for."""
    stored, config = drafts.read(folder)
    values = {name: array for name, array in stored.items() if not name.endswith("scale_inv")}
    for name in (name for name in values if f"{name}_scale_inv" in stored):
        scales = stored[f"{name}_scale_inv"].repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)
        values[name] = values[name].float() * scales[: values[name].shape[0], : values[name].shape[1]]
    del config["quantization_config"]
    return drafts.write(out, values, config)


@pytest.mark.parametrize(
    "said",
    [
        {"modules_to_not_convert": ["lm_head", DRAFT]},
        {"ignored_layers": by_name()},
        {"exclude": [f"re:{DRAFT}.*"]},
        {"exclude_modules": [f"{DRAFT}*"]},
        {"ignore": [r"re:model\.layers\.2\..*_proj.*$", "re:.*lm_head"]},
    ],
    ids=lambda said: next(iter(said)),
)
def test_a_plain_draft_of_an_fp8_model(plain: Path, tmp_path: Path, said: dict[str, Any]) -> None:
    folder = in_fp8(plain, tmp_path / "fp8", of_draft, said)
    assert not check(open_job(checkpoint=str(folder))).findings
    ours, plain_arrays = arrays(opened(folder)), arrays(opened(plain))
    assert all((ours[name] == plain_arrays[name]).all() for name in plain_arrays)


def test_an_fp8_draft(plain: Path, tmp_path: Path) -> None:
    """Each of its matrices is what payload and scales stand for."""
    folder = in_fp8(plain, tmp_path / "fp8", lambda name: False, {})
    ours, exact = arrays(opened(folder)), arrays(opened(dequantised(folder, tmp_path / "meant")))
    assert all((ours[name] == exact[name]).all() for name in exact)
    assert len(by_name()) == sum(name.endswith("scale_inv") for name in opened(folder).plan.required)
    unsaid = in_fp8(plain, tmp_path / "unsaid", of_draft, {})  # kept, and the config does not say so
    assert {finding.code for finding in check(opened(unsaid)).errors} == {"BU137"}


def test_unquantized_layers_of_the_model(plain: Path, tmp_path: Path) -> None:
    """The logits are those of the values that it stands for; a rule is another one for layer 0 than for layer 1."""

    places = ("model.layers.0.self_attn", "model.layers.1.mlp.experts", f"{DRAFT}.mlp")
    said = {"modules_to_not_convert": ["lm_head", *places]}
    folder = in_fp8(plain, tmp_path / "fp8", lambda name: name.startswith(places), said)
    job = open_job(checkpoint=str(folder))
    assert not check(job).findings
    assert not check(opened(folder)).findings
    kinds = [[*entry.sources] for name, entry in job.plan.entries.items() if name.endswith("o_proj.weight")]
    assert [isinstance(sources[-1], Computed) for sources in kinds] == [False, True]
    tokens, wanted = family.reference(dequantised(folder, tmp_path / "meant"))
    ours = family.eager_logits(job, tokens, PROMPT)
    assert abs(ours - wanted).max() <= family.WORST["torch"] * abs(wanted).max()


def test_a_draft_of_a_model_that_nobody_reads(plain: Path, tmp_path: Path) -> None:
    """A method that no scheme reads: the model is refused, its draft is not."""
    tensors, config = drafts.read(plain)
    stored = {name: values if of_draft(name) else values.to(torch.uint8) for name, values in tensors.items()}
    said: dict[str, Any] = {"quant_method": "aqlm", "exclude": ["lm_head", f"re:{DRAFT}.*"]}
    folder = drafts.write(tmp_path / "fp4", stored, config | {"quantization_config": said})
    job = opened(folder)
    assert not check(job).findings
    assert job.graph.dtype == "float32"
    (refused,) = check(open_job(checkpoint=str(folder))).errors
    assert (refused.code, "`quant_method` = 'aqlm'" in refused.message) == ("BU137", True)
    said["exclude"] = by_name()
    assert not check(opened(folder, config=config | {"quantization_config": said})).findings
    said["exclude"] = by_name()[1:]
    (refused,) = check(opened(folder, config=config | {"quantization_config": said})).errors
    assert (refused.code, "`quant_method` = 'aqlm'" in refused.message) == ("BU137", True)


def test_experts_that_are_not_unquantized_together(plain: Path, tmp_path: Path) -> None:
    """A layer's experts are one parameter, and stored alike."""
    alone = f"model.layers.1.mlp.experts.{EXPERTS - 1}.up_proj"
    folder = in_fp8(plain, tmp_path / "fp8", lambda name: name.startswith((alone, DRAFT)), {"ignore": [alone, DRAFT]})
    (finding,) = check(open_job(checkpoint=str(folder))).errors
    assert (finding.code, finding.sources) == ("BU137", (f"{alone}.weight",))


@pytest.mark.parametrize(
    ("key", "entry", "there", "elsewhere"),
    [
        ("modules_to_not_convert", "model.layers.1", "model.layers.1.mlp.up_proj", "model.layers.11.mlp.up_proj"),
        ("modules_to_not_convert", "up_proj", "model.layers.1.mlp.up_proj", "model.layers.1.mlp.up_proj_x"),
        ("modules_to_not_convert", "model.layers.*.gate", "model.layers.1.mlp.gate", "model.layers.1.mlp.gate_proj"),
        ("ignored_layers", r"model\.layers\.\d+\.mlp", "model.layers.61.mlp.up_proj", "model.layers.x.mlp"),
        ("exclude", "model.layers.1.mlp", "model.layers.1.mlp.up_proj", "a.model.layers.1.mlp"),
        ("exclude", "*lm_head", "model.lm_head", "model.lm_head.x"),
        ("exclude", "re:model.layers.*.self_attn.o_proj", "model.layers.7.self_attn.o_proj", "model.layers.7.mlp"),
        ("exclude_modules", "model.layers.61*", "model.layers.61.mlp.up_proj", "model.layers.60.mlp.up_proj"),
        ("ignore", "re:.*mlp$", "model.layers.1.mlp", "model.layers.1.mlp.up_proj"),
    ],
)
def test_what_an_entry_means(key: str, entry: str, there: str, elsewhere: str) -> None:
    unquantized = UnquantizedModules.from_fields(Fields({key: [entry]}, "test"))
    assert there in unquantized
    assert elsewhere not in unquantized


@pytest.mark.parametrize("key", ["modules_to_not_convert", "ignore"])
@pytest.mark.parametrize(
    "entries",
    [["re:(a+)+(b"], [r"re:(a)\1"], ["re:((a+)+)+b"], [f"x{number}.*" for number in range(MOST + 1)], [3], "x"],
)
def test_lists_that_are_refused(key: str, entries: Any) -> None:
    words = Fields({key: entries}, "test")
    UnquantizedModules.from_fields(words)
    assert [finding.parameter for finding in words.findings] == [key]


def test_an_entry_means_what_it_means_to_transformers() -> None:
    """By its own code, for every module of the model and its draft."""
    from transformers.quantizers.quantizers_utils import should_convert_module

    lists = [
        ["lm_head"],
        [DRAFT],
        ["model.layers.1.mlp", "o_proj"],
        ["gate"],
        ["up_proj"],
        [r"model\.layers\.0\.self_attn"],
    ]
    lists += [["model.layers.*.kv_b_proj"], [r"model\.layers\.\d+\.mlp"], ["self_attn"], ["model"], ["layers.1"]]
    for entries in lists:
        unquantized = UnquantizedModules.from_fields(Fields({"modules_to_not_convert": entries}, "test"))
        found = {name: name in unquantized for name in (*by_name(), *opened_matrices())}
        assert found == {name: not should_convert_module(name, entries) for name in found}, entries


def opened_matrices() -> list[str]:
    from bringup.graphs.deepseek_v3 import DeepseekV3
    from bringup.graphs.deepseek_v3 import DeepseekV3Config as Ours

    names = DeepseekV3(Ours.from_hf(json.loads(CONFIG.to_json_string()))).signature()
    return [name.removesuffix(".weight") for name, declared in names.items() if name.endswith("_proj.weight")]
