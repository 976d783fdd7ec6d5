"""Names misspelt in many ways: each is paired with the tensor that it stands for, whatever else is missing."""

from __future__ import annotations

import re

import numpy as np
import pytest

from bringup.adapters.algebra.expr import S
from bringup.adapters.planning.adapter import Adapter
from bringup.diagnostics import Diagnostic
from bringup.graphs.registry import by_name
from tests.check.conftest import small
from tests.check.drafts import FUSED, GPT2, LLAMA, MIXTRAL, Draft, Family
from tests.check.test_faults import checked

FAMILIES = [GPT2, LLAMA, MIXTRAL, FUSED]
SPELLINGS = {
    "one letter less": lambda word: word[:-2] + word[-1],
    "one letter more": lambda word: word + "s",
    "no underscores": lambda word: word.replace("_", "") if "_" in word else word + "0",
    "a word before": lambda word: f"my_{word}",
    "two letters swapped": lambda word: word[:-2] + word[:-3:-1] if word[-1] != word[-2] else word + "x",
}


def respelt(name: str, spelling: str) -> str:
    """The tensor's own word changed, not `weight` or `bias`."""
    parts = name.split(".")
    at = max(k for k, part in enumerate(parts[:-1]) if not part.isdigit())
    parts[at] = SPELLINGS[spelling](parts[at]) if len(parts[at]) > 2 else parts[at] + "_"
    return ".".join(parts)


def findings(draft: Draft) -> list[Diagnostic]:
    return checked(draft).findings


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_a_misspelt_name_is_one_pair(family: Family, spelling: str) -> None:
    clean = small(family)
    for name in clean.tensors:
        draft = clean.copy()
        new = respelt(name, spelling)
        draft.replace(name, draft.tensors[name], new)
        found = findings(draft)
        if name == "lm_head.weight" or "experts" in name:
            assert found[0].code in ("BU101", "BU109")
        assert len(found) == 1, (name, new, found)
        assert found[0].sources == (name, new)
        assert f"did you mean `{new}`?" in found[0].help


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_a_missing_tensor_is_not_paired_with_another_ones_new_name(family: Family) -> None:
    clean = small(family)
    names = [name for name in clean.tensors if ".1." in name]
    for k, name in enumerate(names):
        gone = names[k - 1]  # often its twin: a weight and its bias, w1 and w2
        draft = clean.copy()
        new = respelt(name, "one letter less")
        draft.replace(name, draft.tensors[name], new)
        del draft.tensors[gone]
        found = {finding.sources: finding for finding in findings(draft)}
        assert (name, new) in found, (name, new, gone, found)
        rest = [sources for sources in found if sources != (name, new)]
        assert rest == [(gone,)], (name, new, gone, found)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("wte", "tok_embeddings"),
        ("h.{}.mlp", "h.{}.ffn"),
        ("ln_f", "final_norm"),
        ("h.{}.attn.c_attn", "h.{}.attn.qkv"),
        ("h", "blocks"),
    ],
)
def test_other_names_of_whole_parts(old: str, new: str) -> None:
    draft = small(GPT2).copy().bare()
    for name in list(draft.tensors):
        for before, after in {(old.format(k), new.format(k)) for k in range(draft.depth)}:
            if name.startswith(f"{before}."):
                draft.replace(name, draft.tensors[name], after + name.removeprefix(before))
    (finding,) = findings(draft)
    assert finding.code == "BU101"
    assert f"did you mean `{new.format('{0..2}')}" in finding.help


def test_all_tensors_of_a_module_are_renamed() -> None:
    """No single one of them is the module's new name."""
    draft = small(LLAMA).copy()
    for old, new in {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}.items():
        for name in [name for name in draft.tensors if f".mlp.{old}." in name]:
            draft.replace(name, draft.tensors[name], name.replace(old, new))
    (finding,) = findings(draft)
    assert finding.code == "BU101"
    for new in ("w1", "w2", "w3"):
        assert re.search(rf"`[^`]*\.mlp\.{new}\.weight`", finding.help), finding.help


def test_layers_that_are_misspelt_and_layers_that_are_missing() -> None:
    draft = small(GPT2).copy()
    names = [draft.name("ln_1.weight", k) for k in range(3)]
    del draft.tensors[names[0]]
    draft.replace(names[2], draft.tensors[names[2]], draft.name("ln1.weight", 2))
    pair, missing = findings(draft)
    assert pair.sources == (names[2], draft.name("ln1.weight", 2))
    assert missing.sources == (names[0],)


def test_unlike_names_stay_apart() -> None:
    draft = small(GPT2).copy()
    del draft.tensors[draft.name("ln_1.weight", 1)]
    draft.tensors[draft.name("attn.rotary.inv_freq", 1)] = np.zeros(8, np.float32)
    assert [finding.code for finding in findings(draft)] == ["BU101", "BU105"]


@pytest.mark.parametrize("bare", [False, True])
def test_the_advised_drop_works(bare: bool) -> None:
    for names in (["h.1.attn.gate"], [f"h.{k}.attn.gate" for k in range(3)], ["v_head.w", "v_head.b"]):
        draft = small(GPT2).copy()
        draft = draft.bare() if bare else draft
        draft.tensors |= {draft.name(name): np.zeros(3, np.float32) for name in names}
        (finding,) = findings(draft)
        advice = finding.help.partition("drop(")[2].partition('"')[2].partition('"')[0]
        assert findings_with_drop(draft, advice) == []


def findings_with_drop(draft: Draft, pattern: str) -> list[Diagnostic]:
    def change(adapter: Adapter) -> None:
        adapter.drop(pattern, why="a trial")

    return changed_check(draft, change)


def test_a_rule_that_names_the_prefix() -> None:
    """Its tensors are stored, and the rule expects a second prefix: one finding for all layers."""

    def change(adapter: Adapter) -> None:
        name = "model.layers.{L}.input_layernorm.weight"
        adapter.rules[:] = adapter.with_(rules={name: S(name)}).rules

    (finding,) = changed_check(small(LLAMA), change)
    assert finding.code == "BU101"
    assert "`model.layers.{0..2}.input_layernorm.weight` with the prefix `model.`, which rules omit" in finding.message
    assert "`layers.{0..2}.input_layernorm.weight`" in finding.help
    assert finding.where
    assert finding.where.file == __file__


def changed_check(draft: Draft, change) -> list[Diagnostic]:
    """A check with the family's adapter, changed."""
    from bringup.adapters.checkpoints.memory import dict_checkpoint
    from bringup.adapters.planning.plan import make_plan
    from bringup.compile.check.checker import check

    family = by_name(draft.family.name)[0]
    config = family.load("config").from_hf(draft.config)
    adapter = family.load("adapter")(config)
    change(adapter)
    headers = dict_checkpoint(draft.tensors, draft.config).headers
    return check(make_plan(family.load("graph")(config).signature(), adapter, headers)).findings


def test_the_advice_for_a_padded_vocabulary_works() -> None:
    """Both ways: the config's number, or the rows cut in the adapter and dropped with a reason."""
    from bringup.adapters.algebra.expr import S
    from tests.check.faults import padded

    draft = small(LLAMA).copy()
    padded(draft)
    (finding,) = findings(draft)
    assert 'vocab=64).split("vocab", 50, 14)[0]' in finding.help

    def cut(adapter: Adapter) -> None:
        adapter.rules = [r for r in adapter.rules if "embed" not in r.pattern and "lm_head" not in r.pattern]
        adapter["model.norm.weight"] = S("norm.weight")
        adapter["model.embed_tokens.weight"] = S("embed_tokens.weight", "vocab m", vocab=64).split("vocab", 50, 14)[0]
        adapter["lm_head.weight"] = S("lm_head.weight", "vocab m", vocab=64).split("vocab", 50, 14)[0]

    assert [f.code for f in changed_check(draft, cut)] == ["BU113"]

    def cut_and_drop(adapter: Adapter) -> None:
        cut(adapter)
        adapter.drop("embed_tokens.weight", why="padding")
        adapter.drop("lm_head.weight", why="padding")

    assert changed_check(draft, cut_and_drop) == []
    draft.config["vocab_size"] = 64
    assert findings(draft) == []


def test_a_wrong_size_in_the_config_is_one_mistake_an_axis() -> None:
    draft = small(GPT2).copy()
    draft.config["n_inner"] = 96
    assert [(f.code, f.message.partition("`")[2].partition("`")[0]) for f in findings(draft)] == [("BU102", "f")]
    draft = small(LLAMA).copy()
    draft.config["hidden_size"] = 64  # head_dim is written out in the config
    assert [(f.code, f.message.partition("`")[2].partition("`")[0]) for f in findings(draft)] == [("BU102", "m")]
