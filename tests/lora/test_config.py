"""What names of adapter_config.json match, and the scales that follow, against peft's own functions."""

from __future__ import annotations

import warnings
from dataclasses import fields
from itertools import product
from typing import Any

import pytest

from bringup.adapters.lora.config import HONOURED, MERGED, OF_TRAINING, REFUSED, read_lora_config
from bringup.diagnostics import BringupError

NAMES = [f"model.layers.{layer}.{module}" for layer, module in product(
    (0, 1, 11), ("self_attn.q_proj", "self_attn.k_proj", "mlp.down_proj", "mlp.experts.1.w1")
)] + ["lm_head", "model.embed_tokens", "q_proj", "transformer.h.1.attn.c_attn"]  # fmt: skip
WORDS: dict[str, dict[str, Any]] = {
    "names": {"target_modules": ["q_proj", "lm_head", "mlp.down_proj"]},
    "a whole name": {"target_modules": ["model.layers.1.self_attn.k_proj"]},
    "a regular expression": {"target_modules": r".*\.(0|1)\..*_proj"},
    "excluded": {"target_modules": ["q_proj", "k_proj"], "exclude_modules": ["layers.1.self_attn.q_proj", "k_proj"]},
    "excluded by expression": {"target_modules": ["q_proj", "w1"], "exclude_modules": r"model\.layers\.0\..*"},
    "layers": {"target_modules": ["q_proj", "w1", "c_attn"], "layers_to_transform": [1, 11]},
    "one layer": {"target_modules": ["q_proj", "w1", "c_attn", "lm_head"], "layers_to_transform": 1},
    "layers by pattern": {
        "target_modules": ["q_proj", "c_attn"], "layers_to_transform": [0, 1], "layers_pattern": ["h"]
    },
}  # fmt: skip
PATTERNS: dict[str, dict[str, Any]] = {
    "plain": {},
    "stabilised": {"use_rslora": True},
    "patterns": {"rank_pattern": {"k_proj": 3, r"layers\.1\.self_attn\.q_proj": 5}, "alpha_pattern": {"q_proj": 9}},
    "the first wins": {"rank_pattern": {"q_proj": 3, r".*\.1\.self_attn\.q_proj": 5}, "use_rslora": True},
    "not a part of a section": {"rank_pattern": {"proj": 3, "^model.layers.0.mlp.down_proj": 7}},
}


def peft_config(words: dict[str, Any]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from peft import LoraConfig

        return LoraConfig(**words)


@pytest.mark.parametrize("key", WORDS)
def test_modules_are_those_that_peft_targets(key):
    from peft.tuners.tuners_utils import check_target_module_exists

    words = {"r": 4, "lora_alpha": 8, **WORDS[key]}
    theirs = peft_config(words)
    ours, findings = read_lora_config(words, "x")
    assert findings == []
    targeted = {name: bool(check_target_module_exists(theirs, name)) for name in NAMES}
    assert {name: ours.targets_module(name) for name in NAMES} == targeted
    assert any(targeted.values())


@pytest.mark.parametrize("key", PATTERNS)
def test_ranks_and_scales_are_those_of_peft(key):
    """As `LoraModel._create_and_replace` and `LoraLayer.update_layer` compute them."""
    from peft.utils.other import get_pattern_key

    words = {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj"], **PATTERNS[key]}
    theirs = peft_config(words)
    ours, _ = read_lora_config(words, "x")
    for name in NAMES:
        rank = theirs.rank_pattern.get(get_pattern_key(theirs.rank_pattern.keys(), name), theirs.r)
        alpha = theirs.alpha_pattern.get(get_pattern_key(theirs.alpha_pattern.keys(), name), theirs.lora_alpha)
        assert ours.rank_of(name) == rank
        assert ours.scale_of(name, rank) == (alpha / rank**0.5 if theirs.use_rslora else alpha / rank)


def test_every_word_of_peft_is_honoured_refused_or_of_training():
    """What peft writes by default is refused in no part, and no word of its class is one that nobody knows."""
    config = peft_config({"target_modules": ["q_proj"]})
    words = {**config.to_dict(), "peft_type": "LORA", "target_modules": ["q_proj"]}
    _, findings = read_lora_config(words, "x")
    assert findings == []
    known = HONOURED | OF_TRAINING | REFUSED.keys()
    assert MERGED.keys() <= HONOURED
    assert {field.name for field in fields(config)} <= known


@pytest.mark.parametrize("start", ["pissa", "pissa_niter_4", "olora", "corda", "loftq", "lora_ga"])
def test_a_start_that_changes_the_base_is_refused(start):
    words = {"r": 4, "lora_alpha": 8, "target_modules": ["q"], "init_lora_weights": start}
    _, findings = read_lora_config(words, "x")
    assert [finding.code for finding in findings] == ["BU161"]


NONSENSE: tuple[dict[str, Any], ...] = (
    {"r": 0}, {"r": True}, {"lora_alpha": None}, {"lora_alpha": 0}, {"rank_pattern": {"q": 0}}, {"alpha_pattern": []},
    {"target_modules": 3}, {"target_modules": "("}, {"layers_to_transform": [-1]}, {"use_rslora": "yes"},
    {"use_dora": 1}, {"bias": "some"}, {"modules_to_save": 1}, {"trainable_token_indices": [1, 1]},
    {"trainable_token_indices": {"wte": "all"}},
)  # fmt: skip


@pytest.mark.parametrize("words", NONSENSE, ids=str)
def test_words_that_make_no_sense_are_refused(words):
    with pytest.raises(BringupError, match="BU160"):
        read_lora_config({"r": 4, "lora_alpha": 8, "target_modules": ["q"], **words}, "x")


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ({"lora_alpha": 1e300}, "`lora_alpha` is 1e\\+300"),
        ({"lora_alpha": 10**390}, "`lora_alpha` is 1000"),
        ({"alpha_pattern": {"q_proj": -(10**390)}}, "`alpha_pattern`"),
        ({"alpha_pattern": {"q_proj": 1e-300}}, "`alpha_pattern`"),
        ({"rank_pattern": {f"({number})": 2 for number in range(201)}}, "`rank_pattern` .*at most 200 expressions"),
        ({"layers_pattern": ["h"] * 201}, "`layers_pattern` .*at most 200 expressions"),
        ({"target_modules": "a?" * 500_000}, "`target_modules` .*1,000,000 characters"),
        ({"target_modules": "(" * 400 + "a*" + ")*" * 400}, "`target_modules` .*nested too deeply"),
        ({"rank_pattern": {"(": 2}}, "`rank_pattern` is '\\('"),
        ({"exclude_modules": "(?i)q_proj"}, "`exclude_modules` .*it has flags"),
    ],
)
def test_what_makes_no_sense_is_named_with_its_word(words, named):
    """A scale beyond float32 would be infinity in merged weights, or add nothing."""
    with pytest.raises(BringupError, match=f"BU160: {named}"):
        read_lora_config({"r": 4, "lora_alpha": 8, **words}, "x")
