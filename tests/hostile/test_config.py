"""Hostile config.json files, and graphs that they would ask for."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from bringup.adapters.checkpoints.bounded_json import read_config
from bringup.adapters.checkpoints.memory import dict_checkpoint
from bringup.compile.check.checker import check as check_plan
from bringup.compile.job import open_job
from bringup.diagnostics import BringupError, Severity
from bringup.graphs.config.fields import MOST_LAYERS
from bringup.graphs.config.hf_config import architectures
from bringup.graphs.registry import FAMILIES
from tests.convert import models
from tests.hostile.headers import framed
from tests.hostile.watch import assert_one_error, check

GPT2 = {
    "architectures": ["GPT2LMHeadModel"],
    "model_type": "gpt2",
    "n_embd": 64,
    "n_head": 4,
    "n_layer": 2,
    "vocab_size": 100,
    "n_positions": 64,
}
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "vocab_size": 100,
}
MISTRAL = LLAMA | {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "num_key_value_heads": 2}


def errors_of(raw: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(code, key) of what is wrong with a config: what stops the reading, or what the check reports of it."""
    try:
        findings = list(open_job(None, "dummy", config=raw).findings)
    except BringupError as error:
        findings = list(error.findings)
    assert all(len(finding.message) < 2000 for finding in findings)
    return [(finding.code, finding.parameter) for finding in findings if finding.severity is Severity.ERROR]


NOT_CONFIG: dict[str, Callable[[], bytes]] = {  # created in the test: some are large
    "nothing": lambda: b"",
    "random": lambda: bytes(range(256)) * 40,
    "not utf-8": lambda: b'{"a": "\xff"}',
    "utf-16": lambda: json.dumps(GPT2).encode("utf-16"),
    "a list": lambda: b"[]",
    "a key twice": lambda: b'{"n_embd": 64, "n_embd": 65}',
    "deep lists": lambda: b'{"a": %s' % (b"[" * 1_000_000),
    "70 lists deep": lambda: b'{"a": %s1%s}' % (b"[" * 70, b"]" * 70),
    "a million digits": lambda: b'{"n_layer": %s}' % (b"1" * 1_000_000),
    "1e400": lambda: b'{"layer_norm_epsilon": 1e400}',
    "half a character": lambda: b'{"a": "\\udc00"}',
    "100 MB": lambda: b'{"a": "%s"}' % (b"a" * 100_000_000),
    "a million keys": lambda: b"{%s}" % b",".join(b'"k%d":0' % n for n in range(1_000_000)),
}


@pytest.mark.parametrize("name", NOT_CONFIG)
def test_what_is_no_config(tmp_path: Path, name: str) -> None:
    (tmp_path / "config.json").write_bytes(NOT_CONFIG[name]())
    with pytest.raises(BringupError) as caught:
        read_config(tmp_path / "config.json")
    assert [finding.code for finding in caught.value.findings] == ["BU202"]


@pytest.mark.parametrize("name", ["deep lists", "a million digits", "100 MB", "a million keys"])
def test_in_time_and_memory(tmp_path: Path, name: str) -> None:
    (tmp_path / "model.safetensors").write_bytes(framed({}))
    (tmp_path / "config.json").write_bytes(NOT_CONFIG[name]())
    assert_one_error(check("--checkpoint", tmp_path), "BU202")


def test_a_config_that_is_no_file() -> None:
    with pytest.raises(BringupError) as caught:
        open_job("gpt2", "dummy", config="/dev/zero")
    assert [finding.code for finding in caught.value.findings] == ["BU233"]


NAMES: list[Any] = [
    1,
    True,
    {"GPT2LMHeadModel": 1},
    [["GPT2LMHeadModel"]],
    [None],
    [1.5],
    [{}],
    ["GPT2LMHeadModel", 1],
]


@pytest.mark.parametrize("names", NAMES, ids=str)
def test_architectures_that_are_no_names(names: object) -> None:
    assert errors_of(GPT2 | {"architectures": names}) == [("BU121", "architectures")]


def test_one_architecture_may_be_a_string() -> None:
    assert architectures({"architectures": "GPT2LMHeadModel"}) == ["GPT2LMHeadModel"]
    assert errors_of(GPT2 | {"architectures": "GPT2LMHeadModel"}) == []


@pytest.mark.parametrize(
    "names", [[], None, [""], ["x"] * 100_000, ["x" * 1_000_000], ["\x1b[2J"]], ids=lambda n: repr(n)[:20]
)
def test_architectures_that_nobody_serves(names: object) -> None:
    assert [code for code, _ in errors_of(GPT2 | {"architectures": names})] == ["BU125"]


# A value in the place of a size → the code.
SIZES: dict[str, tuple[str, Any]] = {
    "missing": ("BU121", None),
    "zero": ("BU121", 0),
    "negative": ("BU121", -1),
    "true": ("BU121", True),
    "text": ("BU121", "64"),
    "a float": ("BU121", 64.0),
    "a list": ("BU121", [64]),
    "an object": ("BU121", {"": 64}),
    "NaN": ("BU121", float("nan")),
    "2^62": ("BU124", 1 << 62),
    "400 digits": ("BU124", 10**399),
}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("raw", "key"),
    [(raw, key) for raw in (GPT2, LLAMA) for key, value in raw.items() if isinstance(value, int)],
    ids=lambda part: part if isinstance(part, str) else part["model_type"],
)
def test_sizes(raw: dict[str, Any], key: str, size: str) -> None:
    code, value = SIZES[size]
    assert errors_of(raw | {key: value}) == [(code, key)]


@pytest.mark.parametrize("size", SIZES)
def test_a_context_that_is_stated_twice(size: str) -> None:
    code, value = SIZES[size]
    assert errors_of(GPT2 | {"n_ctx": 64, "n_positions": value}) == [(code, "n_positions")]
    assert errors_of(GPT2 | {"n_ctx": 128}) == [("BU122", "n_ctx")]


@pytest.mark.parametrize(("raw", "key"), [(GPT2, "n_layer"), (LLAMA, "num_hidden_layers")], ids=["gpt2", "llama"])
def test_a_billion_layers(tmp_path: Path, raw: dict[str, Any], key: str) -> None:
    (tmp_path / "model.safetensors").write_bytes(framed({}))
    (tmp_path / "config.json").write_text(json.dumps(raw | {key: 10**9}))
    assert_one_error(check("--checkpoint", tmp_path), "BU124")


EXPERTS = {
    "MixtralForCausalLM": "num_local_experts",
    "Qwen3MoeForCausalLM": "num_experts",
    "GptOssForCausalLM": "num_local_experts",
    "DeepseekV2ForCausalLM": "n_routed_experts",
    "DeepseekV3ForCausalLM": "n_routed_experts",
    "Glm4MoeForCausalLM": "n_routed_experts",
}


@pytest.mark.parametrize("architecture", EXPERTS)
def test_a_billion_experts(tmp_path: Path, architecture: str) -> None:
    raw = {key: value for key, value in LLAMA.items() if key != "model_type"} | {
        "num_key_value_heads": 4,
        "num_experts_per_tok": 2,
    }
    raw |= {"first_k_dense_replace": 0} if EXPERTS[architecture] == "n_routed_experts" else {}
    raw |= {"architectures": [architecture], EXPERTS[architecture]: 10**9}
    (tmp_path / "model.safetensors").write_bytes(framed({}))
    (tmp_path / "config.json").write_text(json.dumps(raw))
    assert_one_error(check("--checkpoint", tmp_path), "BU124")


NUMBERS = [float("nan"), float("inf"), -float("inf"), 0, -1e-5, True, "1e-5", [], 10**400]


@pytest.mark.parametrize("value", NUMBERS, ids=lambda value: str(value)[:8])
@pytest.mark.parametrize(
    ("raw", "key"),
    [(GPT2, "layer_norm_epsilon"), (LLAMA, "rms_norm_eps"), (LLAMA, "rope_theta")],
    ids=["gpt2", "llama", "rope"],
)
def test_numbers(raw: dict[str, Any], key: str, value: Any) -> None:
    assert errors_of(raw | {key: value}) == [("BU124" if value == 10**400 else "BU121", key)]


@pytest.mark.parametrize("value", [1e308, 10**300, 0, -1.0, float("inf")], ids=lambda value: str(value)[:8])
def test_stretched_beyond_all_numbers(value: float) -> None:
    assert errors_of(LLAMA | {"rope_scaling": {"type": "linear", "factor": value}}) == [
        ("BU124" if value == 10**300 else "BU121", "factor")
    ]


@pytest.mark.parametrize("value", [1e308, -1e308, 0.0, 1.01], ids=str)
def test_more_or_less_than_a_head_turns(value: float) -> None:
    longrope = {"type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
    raw = LLAMA | {"architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "rope_scaling": longrope}
    assert errors_of(raw | {"partial_rotary_factor": value}) == [("BU121", "partial_rotary_factor")]


@pytest.mark.parametrize("value", [7, True, [], {}, "swish\x1b[2J", "x" * 1_000_000], ids=lambda value: str(value)[:8])
@pytest.mark.parametrize(("raw", "key"), [(GPT2, "activation_function"), (LLAMA, "hidden_act")], ids=["gpt2", "llama"])
def test_activations(raw: dict[str, Any], key: str, value: object) -> None:
    assert errors_of(raw | {key: value}) == [("BU122" if isinstance(value, str) else "BU121", key)]


ROPES: list[tuple[str, object]] = [
    ("BU121", "llama3"),
    ("BU121", [1, 2]),
    ("BU121", 7),
    ("BU121", {"rope_type": 7}),
    ("BU122", {"rope_type": "\x1b[2J" * 100_000}),
    ("BU121", {"rope_type": "linear"}),
    ("BU121", {"rope_type": "linear", "factor": "2"}),
    ("BU121", {"rope_type": "linear", "factor": float("nan")}),
    ("BU121", {"rope_type": "linear", "factor": -1.0}),
    ("BU120", {"rope_type": "linear", "factor": 2.0, **{f"x{n}": [[[[[n]]]]] for n in range(10_000)}}),
    ("BU121", {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 4.0, "high_freq_factor": 2.0,
               "original_max_position_embeddings": 64}),
    ("BU121", {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": -64}),
]  # fmt: skip


@pytest.mark.parametrize(("code", "rope"), ROPES, ids=range(len(ROPES)))
def test_rope(code: str, rope: object) -> None:
    for key in ("rope_scaling", "rope_parameters"):
        assert [found for found, _ in errors_of(LLAMA | {key: rope})] == [code]


LAYER_TYPES: list[tuple[str, object]] = [
    ("BU122", []),
    ("BU122", ["full_attention"]),
    ("BU122", ["full_attention"] * 500_000),
    ("BU122", ["full_attention", "x" * 1_000_000]),
    ("BU121", "full_attention"),
    ("BU121", [1, 2]),
    ("BU121", [["full_attention"], None]),
]


@pytest.mark.parametrize(("code", "types"), LAYER_TYPES, ids=range(len(LAYER_TYPES)))
def test_layer_types(code: str, types: object) -> None:
    assert errors_of(MISTRAL | {"layer_types": types, "sliding_window": 8}) == [(code, "layer_types")]


def test_thousands_of_unknown_keys() -> None:
    """They are told at once, and not one by one."""
    assert len(errors_of(GPT2 | {f"key_{n}": n for n in range(100_000)})) == 1


def test_unknown_keys_in_their_order() -> None:
    keys = [f"key_{n}" for n in range(20)]
    assert [key for _, key in errors_of(GPT2 | dict.fromkeys(keys, 1))] == keys


def test_deep_values_of_keys_that_nobody_reads(tmp_path: Path) -> None:
    deep = json.loads("[" * 60 + "1" + "]" * 60)
    assert errors_of(GPT2 | {"task_specific_params": deep, "x": deep}) == [("BU120", "x")]


@pytest.mark.parametrize(
    ("family", "words"),
    [
        ("bloom", {"n_head": "x", "hidden_size": 16.0}),
        ("bloom", {"hidden_size": 1.0}),
        ("bloom", {"num_attention_heads": "x", "seq_length": {}}),
        ("gpt2", {"n_embd": 1.0}),
    ],
)
def test_heads_that_would_have_no_channel(family: str, words: dict[str, object]) -> None:
    """Of stand-ins for sizes, those that make no head are passed over."""
    tensors, config = getattr(models, family)()
    job = open_job(checkpoint=dict_checkpoint(tensors, config | words))
    assert {finding.config_key for finding in job.findings} >= words.keys()


DEEP = ("gpt2", "llama", "deepseek_v3")  # in `make test`: 2 s each


@pytest.mark.parametrize(
    "family",
    [pytest.param(each, id=each.name, marks=() if each.name in DEEP else pytest.mark.slow) for each in FAMILIES],
)
def test_the_deepest_graph_allowed(family: Any) -> None:
    raw, key = (GPT2, "n_layer") if family.name == "gpt2" else (LLAMA, "num_hidden_layers")
    job = open_job(None, "dummy", config=raw | {key: MOST_LAYERS})
    assert check_plan(job.plan, family.name).ok
