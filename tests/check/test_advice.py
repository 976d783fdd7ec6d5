"""Advice that can be followed without harm: candidates that shapes cannot tell apart are named, none is chosen."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.check.conftest import small
from tests.check.drafts import GPT2, LLAMA, MIXTRAL
from tests.check.test_faults import checked

EVERY_LAYER = {
    "norms": {"input_layernorm": "attention_norm", "post_attention_layernorm": "ffn_norm"},
    "gate and up": {"mlp.gate_proj": "mlp.linear_1", "mlp.up_proj": "mlp.linear_v"},
}


@pytest.mark.parametrize("key", EVERY_LAYER)
def test_equal_shapes_are_not_distinguished(key: str) -> None:
    draft = small(LLAMA).copy()
    for old, new in EVERY_LAYER[key].items():
        for layer in range(draft.depth):
            name = draft.name(f"{old}.weight", layer)
            draft.replace(name, draft.tensors[name], draft.name(f"{new}.weight", layer))
    found = checked(draft).findings
    assert [finding.code for finding in found] == ["BU101", "BU101"]
    for finding in found:
        assert "did you mean" not in finding.help
        assert "cannot tell them apart" in finding.help
        assert all(f".{new}.weight`" in finding.help for new in EVERY_LAYER[key].values())


ONE_LAYER = """
from bringup.adapters import S, where
from bringup.adapters.llama import adapter as base


def adapter(config):
    norm, up = "layers.{L}.input_layernorm.weight", "layers.{L}.mlp.up_proj.weight"
    return base(config).with_(
        rules={
            f"model.{norm}": where("L", {1}, S("layers.{L}.first_norm.weight"), S(norm)),
            f"model.{up}": where("L", {1}, S(up, "in out"), S(up)),
        }
    )
"""


def test_one_tensor_for_two_that_are_missing() -> None:
    draft = small(LLAMA).copy()
    del draft.tensors[draft.name("mlp.gate_proj.weight", 1)]
    name = draft.name("mlp.up_proj.weight", 1)
    draft.replace(name, draft.tensors[name], draft.name("mlp.linear.weight", 1))
    found = checked(draft).findings
    assert len(found) == 2
    assert all("mlp.linear.weight` " in f.help.replace(",", " ") for f in found), [f.help for f in found]
    assert all("did you mean" not in f.help for f in found)


def test_a_slip_of_the_hand_tells_them_apart() -> None:
    draft = small(LLAMA).copy()
    for old, new in (("mlp.gate_proj", "mlp.gate_prj"), ("mlp.up_proj", "mlp.up_prj")):
        name = draft.name(f"{old}.weight", 1)
        draft.replace(name, draft.tensors[name], draft.name(f"{new}.weight", 1))
    assert {(f.sources[0].split(".")[-2], f.sources[1].split(".")[-2]) for f in checked(draft).findings} == {
        ("gate_proj", "gate_prj"),
        ("up_proj", "up_prj"),
    }


def test_a_fault_of_one_layer_is_not_corrected_in_the_rule(tmp_path: Path) -> None:
    draft = small(LLAMA).copy()
    norm, up = draft.name("input_layernorm.weight", 1), draft.name("mlp.up_proj.weight", 1)
    draft.replace(norm, draft.tensors[norm], norm.replace("input_layernorm", "first_norm"))
    draft.tensors[up] = draft.tensors[up].T.copy()
    assert [finding.help.partition(", but ")[2] for finding in checked(draft).findings] == [
        f'the rule fits `{others}`: correct the file, or write where("L", {{1}}, {source}, S(…))'
        for others, source in [
            ("model.layers.{0,2}.input_layernorm.weight", "S(…)"),
            ("model.layers.{0,2}.mlp.up_proj.weight", 'S(…, "in out")'),
        ]
    ]
    own = tmp_path / "adapter.py"
    own.write_text(ONE_LAYER)
    assert checked(draft, own).findings == []


@pytest.mark.parametrize(
    ("name", "shape", "code"),
    [
        ("model.layers.1.mlp.extra_proj.weight", (7, 5), "BU105"),
        ("model.layers.1.self_attn.q_norm", (32,), "BU105"),
        ("model.layers.1.mlp.gate_proj.qzeros", (2, 6), "BU105"),
        ("model.layers.1.mlp.gate_proj.weight_scale", (48, 1), "BU137"),
        ("model.layers.1.mlp.gate_proj.weight.absmax", (24,), "BU137"),
        ("model.layers.3.input_layernorm.weight", (32,), "BU105"),
    ],
)
def test_no_weight_is_to_be_dropped(name: str, shape: tuple[int, ...], code: str) -> None:
    draft = small(LLAMA).copy()
    draft.tensors[name] = np.zeros(shape, np.float32)
    (finding,) = checked(draft).findings
    assert finding.code == code
    assert finding.help
    assert "drop" not in finding.help
    assert finding.fixes == ()


def test_the_scale_of_a_norm_is_of_no_quantised_weight() -> None:
    draft = small(LLAMA).copy()
    draft.tensors["model.layers.1.further_norm.scale"] = np.zeros(32, np.float32)
    (finding,) = checked(draft).findings
    assert (finding.code, "add a parameter" in finding.help) == ("BU105", True)


def test_a_layer_too_many_is_not_to_be_dropped() -> None:
    draft = small(LLAMA).copy()
    draft.config["num_hidden_layers"] -= 1
    (finding,) = checked(draft).findings
    stated = "`num_hidden_layers` of config.json is 2, and the checkpoint ends at model.layers.2: set it to 3, or "
    assert finding.help.startswith(stated)
    assert "drop(" not in finding.help


@pytest.mark.parametrize("family", [GPT2, LLAMA, MIXTRAL], ids=lambda family: family.name)
def test_leading_zeros_are_one_finding(family) -> None:
    draft = small(family).copy()
    at = draft.name(family.layers)
    draft.tensors = {name.replace(f"{at}.", f"{at}.0"): array for name, array in draft.tensors.items()}
    (finding,) = checked(draft).findings
    assert finding.code == "BU101"
    assert "leading zeros" in finding.message


@pytest.mark.parametrize(
    ("letter", "by", "mark"),
    [
        ("a", "\N{CYRILLIC SMALL LETTER A}", "U+0430 CYRILLIC SMALL LETTER A"),
        ("p", "\N{FULLWIDTH LATIN SMALL LETTER P}", "U+FF50 FULLWIDTH LATIN SMALL LETTER P"),
        ("o", "\N{GREEK SMALL LETTER OMICRON}", "U+03BF GREEK SMALL LETTER OMICRON"),
        ("w", "w\N{ZERO WIDTH SPACE}", "U+200B ZERO WIDTH SPACE"),
    ],
)
def test_look_alike_letters_are_marked(letter: str, by: str, mark: str) -> None:
    draft = small(LLAMA).copy()
    for layer in range(draft.depth):
        old = draft.name("mlp.gate_proj.weight", layer)
        head, _, tail = old.rpartition("mlp.")
        draft.replace(old, draft.tensors[old], f"{head}mlp.{tail.replace(letter, by, 1)}")
    (finding,) = checked(draft).findings
    assert finding.code == "BU101"
    assert mark in finding.help


@pytest.mark.parametrize("key", EVERY_LAYER)
def test_no_repair_where_shapes_cannot_tell(key: str) -> None:
    from bringup.adapters.checkpoints.memory import dict_checkpoint
    from bringup.compile.check.checker import check_job
    from bringup.compile.fix.search import add_fixes
    from bringup.compile.job import open_job

    for one_is_lost in (False, True):
        draft = small(LLAMA).copy()
        for at, (old, new) in enumerate(EVERY_LAYER[key].items()):
            for layer in range(draft.depth):
                name = draft.name(f"{old}.weight", layer)
                if one_is_lost and at:
                    del draft.tensors[name]
                else:
                    draft.replace(name, draft.tensors[name], draft.name(f"{new}.weight", layer))
        job = open_job(None, dict_checkpoint(draft.tensors, draft.config))
        report = check_job(job)
        add_fixes(job, report)
        assert len(report.findings) == 2
        assert [finding.fixes for finding in report.findings] == [(), ()]
