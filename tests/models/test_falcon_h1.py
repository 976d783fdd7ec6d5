"""Falcon-H1 shapes: cases of test_families.py, its config.json, and its tensors."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from transformers import FalconH1Config, PreTrainedConfig

from bringup.compile.job import open_job
from bringup.diagnostics import BringupError
from bringup.graphs.core.axes import shape_of
from bringup.graphs.falcon_h1 import FACTORS
from bringup.graphs.falcon_h1 import FalconH1Config as OurConfig
from tests.graphs import published
from tests.models import parity

SIZES: dict[str, Any] = {"vocab_size": 131, "max_position_embeddings": 1024, "num_hidden_layers": 2}
OF_MODEL: dict[str, Any] = {"embedding_multiplier": 5.6, "lm_head_multiplier": 0.4}
OF_LAYERS: dict[str, Any] = {
    "attention_in_multiplier": 1.5, "attention_out_multiplier": 0.9, "key_multiplier": 0.4, "ssm_in_multiplier": 1.25,
    "ssm_out_multiplier": 0.6, "ssm_multipliers": [0.35, 0.6, 1.7, 0.5, 1.4], "mlp_multipliers": [0.9, 0.6],
}  # fmt: skip
LINEAR = {"rope_type": "linear", "rope_theta": 1e6, "factor": 2.0}
CASES: dict[str, PreTrainedConfig] = {
    "groups-norm-biases-tied": FalconH1Config(
        **SIZES, **OF_MODEL, **OF_LAYERS, hidden_size=40, intermediate_size=50, num_attention_heads=5,
        num_key_value_heads=1, mamba_d_ssm=72, mamba_n_heads=8, mamba_d_state=12, mamba_n_groups=2, mamba_d_conv=3,
        mamba_rms_norm=True, mamba_norm_before_gate=False, attention_bias=True, mlp_bias=True, mamba_proj_bias=True,
        projectors_bias=True, tie_word_embeddings=True,
    ),
    "no-norm": FalconH1Config(
        **SIZES, **OF_MODEL, **OF_LAYERS, hidden_size=36, intermediate_size=44, num_attention_heads=4,
        num_key_value_heads=2, head_dim=10, mamba_d_ssm=54, mamba_n_heads=9, mamba_d_state=10, mamba_conv_bias=False,
        mamba_norm_before_gate=False, rope_parameters={"rope_type": "default", "rope_theta": 1e11},
    ),
    "norm-before-gate-linear-rope": FalconH1Config(
        **SIZES, **OF_MODEL, hidden_size=32, intermediate_size=46, num_attention_heads=4, num_key_value_heads=4,
        mamba_d_ssm=None, mamba_n_heads=4, mamba_d_state=8, mamba_n_groups=4, mamba_rms_norm=True, hidden_act="gelu",
        projectors_bias=True, ssm_multipliers=[0.5, 1.0, 1.0, 1.0, 2.0], rope_parameters=LINEAR,
    ),
}  # fmt: skip

NEEDED = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
GIVEN = dict(zip(NEEDED, (151, 64, 48, 8, 16), strict=True))
OF_FILES = published.PUBLISHED["falcon_h1"]
PUBLISHED: dict[str, Any] = OF_FILES["tiiuae/Falcon-H1-0.5B-Instruct"]


@pytest.mark.parametrize(("size", "billions"), [("0.5B", 0.521), ("7B", 7.59)])
def test_the_published_sizes(size: str, billions: float) -> None:
    job = open_job("falcon_h1", "dummy", config=OF_FILES[f"tiiuae/Falcon-H1-{size}-Instruct"])
    shapes = {name: shape_of(declared.axes) for name, declared in job.graph.signature().params.items()}
    assert sum(map(math.prod, shapes.values())) / 1e9 == pytest.approx(billions, rel=2e-3)
    if size == "7B":
        assert shapes["model.layers.43.mixer.in_proj_xbc.weight"] == (3072 + 2 * 256, 3072)
        assert shapes["model.layers.0.self_attn.k_proj.weight"] == (256, 3072)
        assert "model.layers.0.mixer.gated_norm.weight" not in shapes


def test_keys_that_are_absent() -> None:
    given = GIVEN | {"num_key_value_heads": 4}
    whole = json.loads(FalconH1Config(**given).to_json_string(use_diff=False))
    assert OurConfig.from_hf(given) == OurConfig.from_hf(whole)
    ours = OurConfig.from_hf(GIVEN)
    assert (ours.num_kv_heads, ours.mamba.heads, ours.mamba.head_dim, ours.mamba.norm) == (8, 128, 8, "none")


def test_null_is_what_transformers_computes_with() -> None:
    """All channels of `mamba_expand`, factors of 1, no norm and no biases; a norm comes after the gate."""
    flags = ("mamba_rms_norm", "mamba_conv_bias", "mamba_proj_bias", "projectors_bias")
    nulls = dict.fromkeys((*flags, "mamba_d_ssm", "mlp_multipliers", "ssm_multipliers", "num_key_value_heads"))
    stated = {"mamba_d_ssm": 128, "mlp_multipliers": [1, 1], "ssm_multipliers": [1] * 5, "num_key_value_heads": 16}
    assert OurConfig.from_hf(GIVEN | nulls) == OurConfig.from_hf(GIVEN | dict.fromkeys(flags, False) | stated)
    normed = OurConfig.from_hf(GIVEN | {"mamba_rms_norm": True, "mamba_norm_before_gate": None})
    assert normed.mamba.norm == "after"


@pytest.mark.parametrize(
    ("keys", "code", "message"),
    [
        ({"mamba_d_ssm": 1537}, "BU121", "24 heads of 64 channels are not `mamba_d_ssm` = 1537"),
        ({"mamba_d_ssm": None}, "BU121", "are not `mamba_expand` · `hidden_size` = 2048"),
        ({"mamba_n_groups": 5}, "BU121", "24 heads do not make 5 groups of the same size"),
        ({"mamba_d_head": None}, "BU121", "mamba_d_head"),
        ({"ssm_multipliers": [1.0] * 4}, "BU121", "`ssm_multipliers` has 4 numbers; falcon_h1 needs 5"),
        ({"ssm_multipliers": "all"}, "BU121", "ssm_multipliers"),
        ({"mlp_multipliers": [1.0, 0.0]}, "BU121", "mlp_multipliers"),
        ({"key_multiplier": None}, "BU121", "key_multiplier"),
        ({"embedding_multiplier": 0}, "BU121", "embedding_multiplier"),
        ({"head_dim": None}, "BU121", "head_dim"),
        ({"time_step_limit": [0.001, 0.1]}, "BU122", "time_step_limit"),
        ({"attn_layer_indices": [1]}, "BU122", "attn_layer_indices"),
        ({"mamba_use_mlp": False}, "BU122", "mamba_use_mlp"),
        ({"mamba_rms_norm": "no"}, "BU121", "mamba_rms_norm"),
    ],
)
def test_rejected_configs(keys: dict[str, Any], code: str, message: str) -> None:
    """Each fault is one error."""
    with pytest.raises(BringupError, match=f"{code}.*{message}") as error:
        OurConfig.from_hf(PUBLISHED | keys)
    assert len(error.value.findings) == 1


@pytest.mark.slow
def test_every_factor_matters(tmp_path: Path) -> None:
    """Parity would not hold if one were overlooked."""
    folder = parity.save_checkpoint(CASES["no-norm"], tmp_path)
    for key in (*FACTORS, "key_multiplier"):
        parity.assert_setting_matters(folder, **{key: 1.0})
    for key, count in (("ssm_multipliers", 5), ("mlp_multipliers", 2)):
        for index in range(count):
            parity.assert_setting_matters(
                folder, **{key: [1.0 if i == index else x for i, x in enumerate(OF_LAYERS[key])]}
            )
