"""Null, words that contradict each other, and configs of another model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import transformers

from bringup.compile.job import open_job
from bringup.diagnostics import BringupError, Severity
from bringup.graphs.config.fields import Fields
from bringup.graphs.config.rope_by_layer_type import ropes_by_layer_type
from bringup.graphs.decoder import read_common
from bringup.graphs.gemma3 import Gemma3Config
from bringup.graphs.llama import LlamaConfig
from bringup.graphs.registry import by_name
from tests.graphs.published import PUBLISHED

SIZES = {"vocab_size": 99, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2}
SIZES |= {"num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 128}
LLAMA: dict[str, Any] = SIZES | {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}


def found(raw: dict[str, Any], name: str = "llama") -> list[tuple[str, str]]:
    _, findings = by_name(name)[0].load("config").read(raw)
    return [(finding.code, finding.parameter) for finding in findings]


# --- null

NULLABLE = {
    "exaone": {"rope_scaling"},
    "internlm": {"rope_scaling"},
    "qwen": {"onnx_safe"},
}


@pytest.mark.parametrize("name", NULLABLE)
def test_null_of_families_that_transformers_has_no_code_for(name: str) -> None:
    """The published classes take null as it is: it is refused wherever it is not what they have for it."""
    from bringup.graphs.config.neutral import NEUTRAL

    (raw,) = PUBLISHED[name].values()
    taken = {key for key in raw.keys() - NEUTRAL if found(raw | {key: None}, name) == []}
    assert taken == {key for key in NULLABLE[name] if key in raw} | ({"num_key_value_heads"} & raw.keys())


def test_null_is_distinguished_from_a_missing_key() -> None:
    with pytest.raises(BringupError) as caught:
        LlamaConfig.from_hf(SIZES | {"rms_norm_eps": None})
    (finding,) = caught.value.findings
    assert "`rms_norm_eps` is null" in finding.message
    assert "remove the key" in finding.help
    assert LlamaConfig.from_hf(SIZES).eps == 1e-6


# --- words that contradict each other


@pytest.mark.parametrize(
    ("words", "key"),
    [
        ({"rope_theta": 5e5, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}, "rope_theta"),
        ({"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0, "rope_theta": 1e4}}, "rope_theta"),
        (
            {
                "rope_scaling": {"rope_type": "linear", "factor": 2.0},
                "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
            },
            "rope_parameters",
        ),
        ({"rope_parameters": {"rope_type": "linear", "type": "dynamic", "factor": 2.0, "rope_theta": 1e4}}, "type"),
    ],
)
def test_the_word_that_transformers_obeys_counts(words: dict[str, Any], key: str) -> None:
    config, findings = LlamaConfig.read(SIZES | words)
    assert [(f.code, f.parameter, f.severity) for f in findings] == [("BU151", key, Severity.WARNING)]
    wanted = transformers.LlamaConfig(**json.loads(json.dumps(SIZES | words))).rope_parameters
    assert (config.rope.theta, config.rope.kind) == (wanted["rope_theta"], wanted["rope_type"])


@pytest.mark.parametrize(
    "words",
    [
        {"rope_theta": 1e4, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
        {"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0}},
        {
            "rope_theta": 5e5,
            "rope_scaling": {"type": "linear", "factor": 2.0},
            "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5},
        },
        {"rope_scaling": {"type": "linear", "rope_type": "linear", "factor": 2.0}},
    ],
)
def test_words_that_agree_are_no_finding(words: dict[str, Any]) -> None:
    assert found(SIZES | words) == []


OTHER_TYPE = {"rope_type": "linear", "type": "dynamic", "factor": 2.0}


@pytest.mark.parametrize(
    ("words", "paths"),
    [
        ({"rope_theta": 5e5, "rope_parameters": {"rope_theta": 1e4}}, ["rope_theta", "rope_parameters.rope_theta"]),
        ({"rope_theta": 5e5, "rope_scaling": {"rope_theta": 1e4}}, ["rope_theta", "rope_scaling.rope_theta"]),
        ({"rope_scaling": OTHER_TYPE}, ["rope_scaling.type", "rope_scaling.rope_type"]),
        ({"rope_scaling": {"type": "linear"}}, ["rope_scaling.factor"]),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 2.0, "rope_theta": 0.5}}, ["rope_parameters.rope_theta"]),
        ({"rope_theta": 0.5, "rope_parameters": {"rope_type": "yarn", "factor": 2.0}}, ["rope_theta"]),
        ({"rope_parameters": {"mscale": 1.0}}, ["rope_parameters.mscale"]),
        ({"head_dim": 1}, ["head_dim"]),
        (
            {
                "original_max_position_embeddings": 64,
                "rope_scaling": {"type": "yarn", "factor": 2.0, "original_max_position_embeddings": 32},
            },
            ["rope_scaling.original_max_position_embeddings", "original_max_position_embeddings"],
        ),
    ],
)
def test_messages_have_the_paths_of_rope_settings(words: dict[str, Any], paths: list[str]) -> None:
    """Of each key, and for each text model of a config.json with several."""
    for name, raw, at in (
        ("llama", SIZES | words, ""),
        ("llava", {"model_type": "llava", "text_config": SIZES | words}, "text_config."),
    ):
        _, (finding,) = by_name(name)[0].load("config").read(raw)
        named = [part for part in finding.message.split("`")[1::2] if part != "yarn" and part != "default"]
        assert named == [at + path for path in paths]


@pytest.mark.parametrize(
    ("words", "path"),
    [
        ({"rope_parameters": {"full_attention": {"rope_type": "linear"}}}, "rope_parameters.full_attention.factor"),
        (
            {"rope_parameters": {"sliding_attention": {"rope_theta": -1.0}}},
            "rope_parameters.sliding_attention.rope_theta",
        ),
        ({"rope_local_base_freq": -1.0}, "rope_local_base_freq"),
        ({"rope_scaling": {"rope_type": "linear", "factor": -1.0}}, "rope_scaling.factor"),
    ],
)
def test_messages_have_the_paths_of_two_ropes(words: dict[str, Any], path: str) -> None:
    _, (finding,) = Gemma3Config.read(SIZES | words)
    assert f"`{path}`" in finding.message


@pytest.mark.parametrize("group", [{}, {"rope_type": "linear", "rope_theta": 1e6, "factor": 4.0}])
@pytest.mark.parametrize("word", ["type", "rope_type"])
def test_older_words_of_two_ropes(word: str, group: dict[str, Any]) -> None:
    """`rope_scaling` of Gemma 3: without a group, transformers begins with one of type "default", which then counts."""
    words = {"rope_scaling": {word: "linear", "factor": 8.0}}
    words |= {"rope_parameters": {"full_attention": group}} if group else {}
    sizes = {"vocab_size": 16, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "head_dim": 4}
    sizes |= {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64}
    wanted = transformers.Gemma3TextConfig(**json.loads(json.dumps(sizes | words))).rope_parameters["full_attention"]
    config, _ = Gemma3Config.read(sizes | words)
    full, _ = ropes_by_layer_type(Fields(sizes | words, "t"), 4, 64, local_theta=1e4)
    assert full.kind == wanted["rope_type"] == ("default" if (word, group) == ("type", {}) else "linear")
    assert full.factor == (1.0 if full.kind == "default" else wanted["factor"])
    assert config.max_positions == 64


# --- two names of a key

ALIASES = [
    ("gpt2", "hidden_size", "n_embd"),
    ("gpt2", "max_position_embeddings", "n_positions"),
    ("gpt2", "num_attention_heads", "n_head"),
    ("gpt2", "num_hidden_layers", "n_layer"),
    ("bloom", "num_attention_heads", "n_head"),
    ("bloom", "num_hidden_layers", "n_layer"),
    ("bloom", "n_embed", "hidden_size"),
    ("mixtral", "num_experts", "num_local_experts"),
    ("gpt_oss", "num_experts", "num_local_experts"),
    ("qwen3_moe", "num_local_experts", "num_experts"),
    ("glm4_moe", "num_local_experts", "n_routed_experts"),
    ("glm4_moe", "num_nextn_predict_layers", "num_mtp_layers"),
    ("deepseek_v2", "num_experts", "n_routed_experts"),
    ("deepseek_v3", "num_local_experts", "n_routed_experts"),
    ("deepseek_v3", "num_nextn_predict_layers", "num_mtp_layers"),
    ("glm_moe_dsa", "num_local_experts", "n_routed_experts"),
    ("granitemoehybrid", "layers_block_type", "layer_types"),
    ("mistral4", "num_local_experts", "n_routed_experts"),
    ("nemotron_h", "layer_types", "layers_block_type"),
    ("nemotron_h", "num_local_experts", "n_routed_experts"),
]


@pytest.mark.parametrize(("name", "alias", "key"), ALIASES)
def test_a_second_name_takes_precedence_as_in_transformers(name: str, alias: str, key: str) -> None:
    theirs, ours = transformers.CONFIG_MAPPING[name], by_name(name)[0].load("config")
    raw = json.loads(theirs().to_json_string(use_diff=False))
    value = getattr(theirs(), key)
    assert getattr(theirs(**{key: 2 * value, alias: value}), key) == value
    raw = {each: other for each, other in raw.items() if each not in (key, alias)}
    wanted = ours.read(raw | {key: value})
    assert ours.read(raw | {alias: value}) == wanted
    both, findings = ours.read({**raw, alias: value, key: 2 * value})
    assert both == wanted[0]
    (warned,) = (finding for finding in findings if finding.code == "BU151")
    assert warned.parameter == key
    assert f"config sets `{key}` = " in warned.message
    assert f" and `{alias}` = " in warned.message
    assert any(f"config key `{alias}` is" in finding.message for finding in ours.read(raw | {alias: "x"})[1])


@pytest.mark.parametrize(("name", "alias", "key"), [each for each in ALIASES if each[1][:3] == "num"])
def test_null_under_a_second_name_takes_precedence_too(name: str, alias: str, key: str) -> None:
    """Null for the number of drafts is none."""
    theirs, ours = transformers.CONFIG_MAPPING[name], by_name(name)[0].load("config")
    value = getattr(theirs(), key)
    assert getattr(theirs(**{key: value, alias: None}), key) is None
    raw = json.loads(theirs().to_json_string(use_diff=False))
    raw |= {"num_experts_per_tok": 1} if "num_experts_per_tok" in raw else {}  # DeepSeek-V2's default is null
    config, findings = ours.read(raw | {key: value, alias: None})
    errors = [finding for finding in findings if finding.severity is Severity.ERROR]
    if key == "num_mtp_layers":
        assert (config.draft_layers, errors) == (0, [])
    else:
        assert [(f.code, f.config_key) for f in errors] == [("BU121", alias)]
        assert f"`{alias}` is null" in errors[0].message


@pytest.mark.parametrize("name", ["deepseek_v2", "deepseek_v3", "glm4_moe", "mistral4", "nemotron_h"])
def test_the_experts_of_no_layer(name: str) -> None:
    """transformers builds the model whatever their number is; a layer with experts needs some."""
    theirs, ours = transformers.CONFIG_MAPPING[name], by_name(name)[0].load("config")
    raw = json.loads(theirs().to_json_string(use_diff=False)) | {"n_routed_experts": 0, "num_experts_per_tok": 1}
    dense = {"layers_block_type": ["mlp"]} if name == "nemotron_h" else {"first_k_dense_replace": 1000}
    codes = [[f.code for f in ours.read(raw | keys)[1] if f.severity is Severity.ERROR] for keys in (dense, {})]
    assert codes == [[], ["BU121"]]


# --- the context


def test_a_family_may_state_the_stretched_context() -> None:
    """As Gemma 3 does: `max_position_embeddings` 131072, with linear rope of factor 8."""
    raw = SIZES | {"rope_scaling": {"rope_type": "linear", "factor": 8.0}}
    longest = [
        read_common(Fields(raw, "t"), (None,) * 2, scaled_positions=stretched)["max_positions"]
        for stretched in (True, False)
    ]
    assert longest == [128, 1024]


# --- the config of another model


@pytest.mark.parametrize(
    ("model", "words", "said"),
    [
        ("gpt2", {}, ["`LlamaForCausalLM`", "`GPT2LMHeadModel`", "name `llama`"]),
        (
            "llama",
            {"architectures": ["GemmaForCausalLM"], "model_type": "gemma"},
            ["`GemmaForCausalLM`", "llama graph"],
        ),
        ("llama", {"architectures": ["Qwen2ForCausalLM"]}, ["`Qwen2ForCausalLM`", "name `qwen2`"]),
        ("llama", {"architectures": None, "model_type": "helium"}, ["`helium`", "`mistral`"]),
        (None, {"model_type": "gemma"}, ["`gemma`", "`LlamaForCausalLM`"]),
        (None, {"model_type": "mixtral"}, ["`mixtral`", "name `mixtral`"]),
    ],
)
def test_a_config_of_another_model_is_one_finding(model: str | None, words: dict[str, Any], said: list[str]) -> None:
    with pytest.raises(BringupError) as caught:
        open_job(model, "dummy", config=LLAMA | words)
    (finding,) = caught.value.findings
    assert finding.code == "BU152"
    assert all(word in f"{finding.message} {finding.help}" for word in said), (finding.message, finding.help)


@pytest.mark.parametrize(
    ("words", "allow"),
    [
        ({"architectures": ["MistralForCausalLM"], "model_type": "mistral"}, {}),
        ({"architectures": ["LlamaForCausalLM"], "model_type": "mistral"}, {}),
        ({"architectures": None, "model_type": None}, {}),
        ({"architectures": ["YiForCausalLM"]}, {"architectures": "Llama's code under another name"}),
        ({"model_type": "Yi"}, {"model_type": "Llama's code under another name"}),
    ],
)
def test_what_is_of_the_family_or_let_through_is_read(words: dict[str, Any], allow: dict[str, str]) -> None:
    assert not open_job("llama", "dummy", config=LLAMA | words, allow=allow).findings


def test_a_users_subclass_takes_its_own_model_type() -> None:
    """As that of examples/add_a_model/tiny.py, which extends Llama's config and lists no types."""
    from bringup.graphs.family import Family
    from bringup.graphs.identity import check_identity

    class Tiny(LlamaConfig):
        pass

    check_identity(Family(name="tiny", graph=None, config=Tiny, adapter=None), LLAMA | {"model_type": "tiny"})


# --- what is empty is not what is absent


def test_an_empty_config_is_not_ignored() -> None:
    with pytest.raises(BringupError, match="BU125"):
        open_job(None, "dummy", config={})
    with pytest.raises(BringupError, match=r"BU121.*n_embd"):
        open_job("gpt2", "dummy", config={})


@pytest.mark.parametrize(("model", "checkpoint", "code"), [("", "dummy", "BU002"), ("gpt2", "", "BU005")])
def test_an_empty_name_is_not_ignored(model: str, checkpoint: str, code: str) -> None:
    with pytest.raises(BringupError, match=code):
        open_job(model, checkpoint)


def test_an_empty_adapter_is_not_ignored() -> None:
    with pytest.raises(BringupError, match="BU004"):
        open_job("gpt2", "dummy", adapter="")


@pytest.mark.parametrize(
    ("config", "architecture", "kind", "refused"),
    [
        ("LlamaConfig", "MineForCausalLM", "mine", False),  # Llama's words, another model's name
        ("LlamaConfig", "LlamaForCausalLM", "mine", True),  # Llama's architecture comes with Llama's types
        ("MineConfig", "MineForCausalLM", "mine", False),
        ("MineConfig", "MineForCausalLM", "llama", True),
    ],
)
def test_the_types_of_a_family_of_ones_own(
    tmp_path: Path, config: str, architecture: str, kind: str, refused: bool
) -> None:
    """The types of a config class are those of the family it was written for."""
    file = tmp_path / "mine.py"
    file.write_text(
        "from bringup.adapters.llama import adapter\nfrom bringup.graphs.llama import Llama, LlamaConfig\n"
        "from bringup.graphs.family import Family\n"
        "class MineConfig(LlamaConfig):\n    model_types = ('mine',)\n"
        f"family = Family(name='own', graph=Llama, config={config}, adapter=adapter, "
        "architectures=('MineForCausalLM', 'LlamaForCausalLM'))\n",
        "utf-8",
    )
    raw = LLAMA | {"architectures": [architecture], "model_type": kind}
    if not refused:
        assert not open_job(str(file), "dummy", config=raw).findings
        return
    with pytest.raises(BringupError, match="BU152"):
        open_job(str(file), "dummy", config=raw)
