"""Nemotron-H shapes: cases of test_families.py, its config.json, and the names of its tensors."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from transformers import NemotronHConfig, PreTrainedConfig

from bringup.adapters.apply.materialise import materialise
from bringup.compile.job import open_job
from bringup.compile.parity.reference import Reference
from bringup.compile.pipeline import check
from bringup.diagnostics import BringupError, Severity
from bringup.graphs.core.axes import shape_of
from bringup.graphs.nemotron_h import NemotronHConfig as OurConfig
from tests.graphs import published
from tests.models import family, parity

SIZES: dict[str, Any] = {"vocab_size": 131, "max_position_embeddings": 1024}
CASES: dict[str, PreTrainedConfig] = {
    "groups-latent-biases": NemotronHConfig(
        **SIZES, layers_block_type=["mamba", "mlp", "attention", "moe"], hidden_size=36, intermediate_size=50,
        num_attention_heads=4, num_key_value_heads=2, head_dim=10, mamba_num_heads=8, mamba_head_dim=6, n_groups=2,
        ssm_state_size=12, conv_kernel=3, n_routed_experts=6, num_experts_per_tok=2, n_group=3, topk_group=2,
        routed_scaling_factor=2.5, moe_intermediate_size=22, moe_shared_expert_intermediate_size=26,
        moe_latent_size=24, mlp_bias=True, use_bias=True,
    ),
    "more-experts-than-tokens": NemotronHConfig(
        **SIZES, layers_block_type=["moe", "mamba", "attention", "mamba"], hidden_size=30, num_attention_heads=5,
        num_key_value_heads=1, head_dim=11, mamba_num_heads=6, mamba_head_dim=10, n_groups=3, ssm_state_size=10,
        use_conv_bias=False, n_routed_experts=67, num_experts_per_tok=3, norm_topk_prob=False,
        moe_intermediate_size=18, moe_shared_expert_intermediate_size=20, mlp_hidden_act="silu",
        layer_norm_epsilon=1e-3,
    ),
}  # fmt: skip

NANO, DENSE = published.PUBLISHED["nemotron_h"].values()


def shapes_of(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    signature = open_job("nemotron_h", "dummy", config=config).graph.signature()
    return {name: shape_of(declared.axes) for name, declared in signature.params.items()}


def test_the_published_sizes() -> None:
    """31.6 and 8.1 billion parameters."""
    shapes, dense = shapes_of(NANO), shapes_of(DENSE)
    first = "model.layers.0.mixer."
    assert shapes[first + "in_proj_xbc.weight"] == (64 * 64 + 2 * 8 * 128, 2688)
    assert shapes["model.layers.1.mixer.experts.up_proj"] == (128, 1856, 2688)
    assert shapes["model.layers.1.mixer.shared_experts.up_proj.weight"] == (3712, 2688)
    assert shapes["model.layers.5.mixer.k_proj.weight"] == (256, 2688)
    assert sum(map(math.prod, shapes.values())) / 1e9 == pytest.approx(31.6, abs=0.1)
    assert dense["model.layers.1.mixer.down_proj.weight"] == (4096, 21504)
    assert sum(map(math.prod, dense.values())) / 1e9 == pytest.approx(8.1, abs=0.1)


@pytest.mark.parametrize("raw", [NANO, DENSE])
def test_every_published_key_is_known(raw: dict[str, Any]) -> None:
    assert OurConfig.read(raw)[1] == []


NEEDED = ("vocab_size", "hidden_size", "num_attention_heads")
GIVEN: dict[str, Any] = dict(zip(NEEDED, (151, 64, 16), strict=True))


def test_keys_that_are_absent() -> None:
    whole = json.loads(NemotronHConfig(**GIVEN).to_json_string(use_diff=False))
    assert OurConfig.from_hf(GIVEN) == OurConfig.from_hf(whole)
    assert OurConfig.from_hf(GIVEN).kinds == ("mamba", "moe", "attention", "mlp")


def test_every_way_to_state_the_layers() -> None:
    names = {"linear_attention": "mamba", "full_attention": "attention"}
    types = ["full_attention", "mlp", "linear_attention", "moe", "mlp"]
    stated: list[dict[str, Any]] = [
        {"layers_block_type": types}, {"layer_types": [names.get(kind, kind) for kind in types]},
        {"hybrid_override_pattern": "*-ME-"},
        {"hybrid_override_pattern": "M", "layers_block_type": types},  # transformers prefers the list
    ]  # fmt: skip
    for keys in stated:
        assert NemotronHConfig(**GIVEN, **keys).layers_block_type == types
        assert OurConfig.from_hf(GIVEN | keys).kinds == ("attention", "mlp", "mamba", "moe", "mlp")


def test_older_keys() -> None:
    older: dict[str, Any] = {"mamba_n_groups": 4, "mamba_d_conv": 3, "mamba_conv_bias": False, "mamba_chunk_size": 64}
    older |= {"mamba_dt_min": 0.001, "mamba_dt_max": 0.1, "mamba_dt_init_floor": 1e-4}
    theirs = json.loads(NemotronHConfig(**GIVEN, **older).to_json_string(use_diff=False))
    assert OurConfig.from_hf(GIVEN | older) == OurConfig.from_hf(theirs)
    assert OurConfig.from_hf(GIVEN | older).mamba.groups == 4


@pytest.mark.parametrize(
    ("keys", "code", "message"),
    [
        ({"hybrid_override_pattern": "MXM"}, "BU122", "MXM"),
        ({"hybrid_override_pattern": ""}, "BU122", "1 to 1000 of M, "),
        ({"hybrid_override_pattern": None}, "BU121", "hybrid_override_pattern"),  # not the default in transformers
        # the layers limit the experts
        ({"hybrid_override_pattern": "E" * 1000, "n_routed_experts": 132}, "BU124", "more than 131 "),
        ({"layers_block_type": ["mamba", "conv"]}, "BU122", "layers_block_type"),
        ({"layers_block_type": ["mamba"] * 1001}, "BU122", "1 to 1000 of "),
        ({"n_groups": 7}, "BU121", "64 heads do not make 7 groups"),
        ({"n_group": 65}, "BU121", "128 experts do not make 65 groups"),
        ({"time_step_limit": [0.0, 1.0]}, "BU122", "time_step_limit"),
        ({"time_step_min": 0.01}, "BU122", "time_step_min"),
        ({"mamba_dt_min": 0.01}, "BU122", "mamba_dt_min"),
        ({"attention_bias": True}, "BU122", "attention_bias"),
        ({"mamba_proj_bias": True}, "BU122", "mamba_proj_bias"),
        ({"norm_eps": 1e-6}, "BU122", "norm_eps"),
        ({"attention_head_dim": 64}, "BU122", "attention_head_dim"),
        ({"num_query_groups": 8}, "BU122", "num_query_groups"),
        ({"sliding_window": 4096}, "BU122", "sliding_window"),
        ({"n_shared_experts": 2}, "BU122", "n_shared_experts"),
        ({"moe_latent_size": 0}, "BU121", "moe_latent_size"),
        ({"mlp_hidden_act": "relu3"}, "BU122", "mlp_hidden_act"),
    ],
)
def test_rejected_configs(keys: dict[str, Any], code: str, message: str) -> None:
    with pytest.raises(BringupError, match=f"{code}.*{message}"):
        OurConfig.from_hf(NANO | keys)


@pytest.mark.parametrize(
    ("keys", "key"),
    [
        ({"num_hidden_layers": 51}, "num_hidden_layers"),
        ({"layers_block_type": ["moe"], "num_hidden_layers": None}, "hybrid_override_pattern"),
    ],
)
def test_a_contradiction_is_a_warning(keys: dict[str, Any], key: str) -> None:
    (finding,) = OurConfig.read(NANO | keys)[1]
    assert (finding.code, finding.parameter) == ("BU151", key)


def test_a_number_of_layers_does_not_replace_their_kinds() -> None:
    assert OurConfig.read(GIVEN | {"num_hidden_layers": 4})[1] == []
    (finding,) = OurConfig.read(GIVEN | {"num_hidden_layers": 52})[1]
    assert (finding.code, finding.parameter, finding.severity) == ("BU121", "num_hidden_layers", Severity.ERROR)


def test_short_time_steps(tmp_path: Path) -> None:
    """The reference of `verify` has no bound for those of a prompt, which are below 0.001 here."""
    folder = parity.save_checkpoint(CASES["groups-latent-biases"], tmp_path)
    tensors = load_file(folder / "model.safetensors")
    tensors["backbone.layers.0.mixer.dt_bias"] -= 9
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    job, tokens = open_job(checkpoint=str(folder)), parity.random_tokens(family.PROMPT, 131)
    ours = family.eager_logits(job, tokens, family.PROMPT)
    wanted = Reference(job.checkpoint, job.config, "float32").logits(tokens)
    bounded = parity.logits_of(parity.load_reference(folder), tokens)
    assert parity.distance(ours, wanted).worst <= family.WORST["torch"]
    assert parity.distance(ours, bounded).worst > 10 * family.WORST["torch"]


def values_of(folder: Path) -> dict[str, np.ndarray]:
    job = open_job(checkpoint=str(folder))
    check(job).raise_if_errors()
    return materialise(job.plan, job.checkpoint)


def test_other_names_and_ties(tmp_path: Path) -> None:
    """transformers' own names: `model.`, and all experts in one tensor. A tied head, and `mtp` is dropped."""
    folder = parity.save_checkpoint(CASES["groups-latent-biases"], tmp_path / "saved")
    tensors, config = load_file(folder / "model.safetensors"), json.loads((folder / "config.json").read_text("utf-8"))
    tensors["lm_head.weight"] = tensors["backbone.embeddings.weight"]
    save_file(tensors, folder / "model.safetensors")
    wanted = values_of(folder)

    other = tmp_path / "other"
    other.mkdir()
    renamed = {
        name.replace("backbone.", "model."): array for name, array in tensors.items() if name != "lm_head.weight"
    }
    for x in ("up", "down"):
        experts = [renamed.pop(f"model.layers.3.mixer.experts.{index}.{x}_proj.weight") for index in range(6)]
        renamed[f"model.layers.3.mixer.experts.{x}_proj"] = np.stack(experts)
    renamed["mtp.layers.0.mixer.q_proj.weight"] = np.ones((4, 4), np.float32)
    save_file(renamed, other / "model.safetensors")
    tied = config | {"tie_word_embeddings": True, "num_nextn_predict_layers": 1}
    (other / "config.json").write_text(json.dumps(tied), "utf-8")
    found = values_of(other)
    assert found.keys() == wanted.keys()
    assert all(np.array_equal(found[name], array) for name, array in wanted.items())


@pytest.mark.parametrize(
    "setting",
    [
        {"routed_scaling_factor": 1.0}, {"topk_group": 1}, {"num_experts_per_tok": 1}, {"norm_topk_prob": False},
        {"layer_norm_epsilon": 1e-2}, {"mlp_hidden_act": "silu"},
    ],
)  # fmt: skip
def test_every_setting_matters(setting: dict[str, Any], tmp_path: Path) -> None:
    folder = parity.save_checkpoint(CASES["groups-latent-biases"], tmp_path)
    parity.assert_setting_matters(folder, **setting)
