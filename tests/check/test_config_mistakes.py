"""A mistake in the config is one finding, and hides none of the others."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bringup.adapters.checkpoints.memory import dict_checkpoint
from bringup.compile.check.checker import check_job
from bringup.compile.job import open_job
from bringup.diagnostics import Diagnostic, Severity
from tests.check.drafts import Draft
from tests.check.mutations.bases import base
from tests.check.mutations.deepseek_fp8 import fp8
from tests.check.mutations.mutation import Trial
from tests.models import parity
from tests.models.test_granitemoehybrid import CASES


def findings(draft: Draft) -> list[Diagnostic]:
    return check_job(open_job(None, dict_checkpoint(draft.tensors, draft.config))).findings


ONE_EACH: list[tuple[str, str, Any, str]] = [
    ("llama", "rms_norm_eps", "1e-6", "BU121"),
    ("llama", "rms_norm_eps", -1.0, "BU121"),
    ("llama", "num_hidden_layers", "3", "BU121"),
    ("llama", "num_hidden_layers", None, "BU121"),
    ("llama", "hidden_size", None, "BU121"),
    ("llama", "vocab_size", -50, "BU121"),
    ("llama", "intermediate_size", 1 << 40, "BU124"),
    ("llama", "num_attention_heads", "four", "BU121"),
    ("llama", "tie_word_embeddings", "false", "BU121"),
    ("llama", "layer_types", ["full_attention", "sliding", "full_attention"], "BU122"),
    ("llama", "layer_types", ["full_attention"], "BU122"),
    ("llama", "hidden_act", "swoosh", "BU122"),
    ("gpt2", "n_embd", 0, "BU121"),
    ("gpt2", "n_embd", 64, "BU102"),
    ("gpt2", "n_layer", "x", "BU121"),
    ("mixtral", "num_local_experts", "four", "BU121"),
    ("mixtral", "num_local_experts", None, "BU121"),
    ("mixtral", "num_local_experts", 8, "BU102"),
    ("mixtral", "num_experts", None, "BU121"),
    ("llama", "attention_bias", None, "BU121"),
    ("llama", "attention_bias", "no", "BU121"),
    ("llama", "mlp_bias", [], "BU121"),
    ("gpt_oss", "attention_bias", None, "BU121"),
    ("mixtral", "hidden_size", 64, "BU102"),
    ("deepseek_v3", "topk_method", "noaux", "BU122"),
    ("deepseek_v3", "n_group", 3, "BU121"),
    ("deepseek_v3", "num_attention_heads", 8, "BU102"),
    ("deepseek_v3", "num_attention_heads", None, "BU121"),
    ("deepseek_v3", "kv_lora_rank", 32, "BU102"),
    ("deepseek_v3", "n_routed_experts", 16, "BU102"),
    ("gpt_oss", "swiglu_limit", "7", "BU121"),
]


@pytest.mark.parametrize(("family", "key", "value", "code"), ONE_EACH)
def test_it_is_one_finding_and_hides_none(family: str, key: str, value: object, code: str) -> None:
    draft = base(family)
    draft.config[key] = value
    draft.tensors["extra_gate"] = np.ones((3, 5), np.float32)
    found = findings(draft)
    assert sorted(finding.code for finding in found) == sorted([code, "BU105"]), found
    (finding,) = (finding for finding in found if finding.code == code)
    assert key in (finding.parameter, finding.config_key)
    if code == "BU102":
        assert f"`{key}`" in finding.message
        assert f"correct `{key}`" in finding.help


def test_a_size_that_is_wrong_under_its_second_name() -> None:
    draft = base("gpt2")
    del draft.config["n_embd"]
    draft.config["hidden_size"] = "all"
    draft.tensors["extra_gate"] = np.ones((3, 5), np.float32)
    assert [(f.code, f.config_key) for f in findings(draft)] == [("BU121", "hidden_size"), ("BU105", "")]


def test_two_wrong_sizes_are_two_findings() -> None:
    draft = base("mixtral")
    draft.config |= {"hidden_size": 64, "num_local_experts": 8}
    assert {finding.config_key for finding in findings(draft)} == {"hidden_size", "num_local_experts"}


def test_a_stand_in_is_not_reported() -> None:
    draft = base("deepseek_v3")
    draft.config |= {"n_group": None, "moe_intermediate_size": 8}
    assert [(finding.code, finding.config_key or finding.parameter) for finding in findings(draft)] == [
        ("BU102", "moe_intermediate_size"),
        ("BU121", "n_group"),
    ]


@pytest.mark.parametrize("other", [{"rope_interleaved": True}, {"hidden_act": "swoosh"}])
def test_two_thetas_are_compared_whatever_else_is_wrong(other: dict[str, Any]) -> None:
    draft = base("llama")
    draft.config |= {"rope_theta": 500000.0, **other}
    assert sorted(finding.code for finding in findings(draft)) == ["BU122", "BU151"]


def test_two_types_of_rope_are_compared_where_theta_is_wrong() -> None:
    draft = base("llama")
    draft.config["rope_parameters"] |= {"rope_theta": None, "type": "linear"}
    assert sorted(finding.code for finding in findings(draft)) == ["BU121", "BU151"]


def test_a_product_names_all_its_keys() -> None:
    draft = base("llama")
    draft.config["num_key_value_heads"] = 4
    (finding,) = findings(draft)
    assert "`num_key_value_heads` and `head_dim` of the config" in finding.message


MISSPELT = [
    ("gpt2", "n_embd", "n_emb"), ("gpt2", "n_layer", "n_layers"), ("gpt2", "layer_norm_epsilon", "layernorm_epsilon"),
    ("llama", "num_hidden_layers", "num_hidden_layer"), ("llama", "num_key_value_heads", "num_key_value_head"),
    ("llama", "hidden_size", "hiden_size"), ("llama", "rms_norm_eps", "rms_nrom_eps"),
    ("mixtral", "num_local_experts", "num_local_expert"), ("deepseek_v3", "kv_lora_rank", "kv_lora_rnak"),
    ("deepseek_v3", "num_hidden_layers", "num_hiden_layers"), ("deepseek_v3", "n_routed_experts", "n_routed_expert"),
    ("gpt_oss", "sliding_window", "sliding_windows"), ("bloom", "n_head", "n_heads"),
]  # fmt: skip


@pytest.mark.parametrize(("family", "key", "instead"), MISSPELT)
def test_a_misspelt_key_is_one_finding(family: str, key: str, instead: str) -> None:
    draft = base(family)
    draft.config[instead] = draft.config.pop(key)
    (found,) = findings(draft)
    assert (found.code, found.parameter) == ("BU120", instead)
    assert f"did you mean `{key}`" in found.help


def test_what_cannot_be_the_value_of_the_intended_key() -> None:
    """Then the two are two findings, as they would be without the likeness."""
    draft = base("llama")
    del draft.config["hidden_size"]
    draft.config["hidden_sizes"] = "thirty"
    assert {(found.code, found.parameter) for found in findings(draft)} == {
        ("BU120", "hidden_sizes"), ("BU121", "hidden_size"),
    }  # fmt: skip


@pytest.mark.parametrize(("said", "code"), [(None, "BU121"), (False, "BU105"), ("absent", "BU105")])
def test_biases_that_the_config_does_not_have(said: object, code: str) -> None:
    """However many there are, it is one word of the config."""
    draft = base("llama")
    for name in [name for name in draft.tensors if ".self_attn." in name]:
        draft.tensors[name.replace(".weight", ".bias")] = np.zeros(len(draft.tensors[name]), np.float32)
    draft.config |= {"attention_bias": said}
    if said == "absent":
        del draft.config["attention_bias"]
    draft.tensors["extra_gate"] = np.ones((3, 5), np.float32)
    found, other = findings(draft)
    assert found.code == code
    assert other.sources == ("extra_gate",)
    assert "attention_bias" in f"{found.parameter} {found.help}"


def test_a_warning_about_a_key_takes_no_errors_place() -> None:
    """The biases stay an error where a finding from before about the same key is a warning."""
    draft = base("llama")
    for name in [name for name in draft.tensors if ".self_attn." in name]:
        draft.tensors[name.replace(".weight", ".bias")] = np.zeros(len(draft.tensors[name]), np.float32)
    draft.config["attention_bias"] = False
    job = open_job(None, dict_checkpoint(draft.tensors, draft.config))
    warning = Diagnostic(code="BU151", message="", parameter="attention_bias", severity=Severity.WARNING)
    report = check_job(replace(job, findings=[warning]))
    assert [finding.code for finding in report.errors] == ["BU105"]


@pytest.mark.parametrize("more", [1, -1])
def test_a_wrong_number_of_layers(more: int) -> None:
    """One finding, though some tensors of a layer are quantised and others are not."""
    trial = Trial(base("deepseek_v3"))
    fp8(trial)
    layers = trial.config["num_hidden_layers"]
    trial.config["num_hidden_layers"] += more
    (found,) = findings(trial.draft)
    assert found.code == ("BU101" if more > 0 else "BU105")
    if more < 0:
        assert found.help.startswith(f"correct `num_hidden_layers` to {layers} ")


def test_a_draft_that_the_config_does_not_count() -> None:
    trial = Trial(base("deepseek_v3"))
    fp8(trial)
    m, layers = trial.config["hidden_size"], trial.config["num_hidden_layers"]
    last, at = f"model.layers.{layers - 1}.", f"model.layers.{layers}."
    tensors = trial.draft.tensors
    tensors |= {name.replace(last, at): array for name, array in tensors.items() if last in name}
    own = {"enorm": (m,), "hnorm": (m,), "eh_proj": (m, 2 * m)}
    tensors |= {f"{at}{name}.weight": np.zeros(shape, np.float32) for name, shape in own.items()}
    trial.config["num_nextn_predict_layers"] = 0
    (found,) = findings(trial.draft)
    assert found.code == "BU105"
    assert found.help.startswith("correct `num_nextn_predict_layers` to 1 ")


def test_a_matrix_that_several_parameters_divide(tmp_path: Path) -> None:
    """One finding for the matrix, with the keys of all its parts; one for the convolution of concatenated channels."""
    folder = parity.save_checkpoint(CASES["a-group-each-head"], tmp_path)
    config = json.loads((folder / "config.json").read_text()) | {"mamba_n_groups": 2}
    found = check_job(open_job(None, str(folder), config=config)).findings
    keys = "`mamba_n_heads`, `mamba_d_head`, `mamba_n_groups` and `mamba_d_state` of the config"
    sizes = {"in_proj.weight": (196, 132), "conv1d.weight": (160, 96)}
    assert [(each.code, each.sources) for each in found] == [
        ("BU102", (f"model.layers.0.mamba.{name}",)) for name in sizes
    ]
    for each, (stored, stated) in zip(found, sizes.values(), strict=True):
        assert f"is {stored} in the checkpoint, {stated} in the graph ({keys})" in each.message
        assert "correct `mamba_n_heads`, `mamba_d_head`, `mamba_n_groups` or `mamba_d_state`, or" in each.help
