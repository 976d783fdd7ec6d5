"""What scales, zero points, indices and sizes give away: one finding a mistake, none for what quantisers write."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bringup.adapters.checkpoints.memory import dict_checkpoint
from bringup.compile.check.values import value_findings
from bringup.compile.job import open_job
from bringup.compile.pipeline import check
from bringup.diagnostics import Diagnostic
from tests.quantised.checkpoints import CASES, WHOLE_WORDS, write
from tests.quantised.formats import FORMATS
from tests.quantised.int4_formats import FORMATS as INT4

Edit = Callable[[np.ndarray], np.ndarray]
SLOW = pytest.mark.slow
WRITTEN = {**dict.fromkeys(FORMATS, "llama"), **dict.fromkeys(INT4, "llama of words")}
OTHERS = [(name, family) for name in FORMATS for family in CASES if family != "llama"]
OTHERS += [(name, family) for name in INT4 for family in WHOLE_WORDS if family != "llama of words"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("parts")


def found(name: str, folder: Path, end: str = "", edit: Edit | None = None, **words: Any) -> list[Diagnostic]:
    """What the values say once the tensors of an ending are edited; the headers fit."""
    quantised, _ = write(WRITTEN[name], {**FORMATS, **INT4}[name], folder)
    opened = open_job(checkpoint=str(quantised)).checkpoint
    tensors = {name: opened.read(info) for name, info in opened.headers.items()}
    for each in [each for each in tensors if edit and each.endswith(end)]:
        tensors[each] = np.ascontiguousarray(edit(tensors[each])).astype(tensors[each].dtype)
    config = {**opened.config}
    if words:
        config["quantization_config"] |= words
    job = open_job(checkpoint=dict_checkpoint(tensors, config))
    assert not check(job).findings
    return value_findings(job)


@pytest.mark.parametrize(("name", "family"), [*WRITTEN.items(), *(pytest.param(*pair, marks=SLOW) for pair in OTHERS)])
def test_what_quantisers_write(name: str, family: str, folder: Path) -> None:
    quantised, _ = write(family, {**FORMATS, **INT4}[name], folder)
    assert value_findings(open_job(checkpoint=str(quantised))) == []


def inverse(scales: np.ndarray) -> np.ndarray:
    return 1 / scales.astype(np.float32)


INVERTED = [
    ("fp8-tensor", "weight_scale"), ("fp8-inv", "weight_scale_inv"), ("fbgemm", "weight_scale"),
    ("ct-int8", "weight_scale"), ("ct-int4", "weight_scale"), ("ct-fp8-blocks", "weight_scale"),
    ("ct-nvfp4", "weight_global_scale"), ("modelopt-nvfp4", "weight_scale_2"), ("awq", "scales"), ("gptq", "scales"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "end"), INVERTED)
def test_scales_that_are_reciprocals(name: str, end: str, folder: Path) -> None:
    _one(found(name, folder, end, inverse))


def _one(findings: list[Diagnostic]) -> None:
    (finding,) = findings
    assert (finding.code, finding.parameter) == ("BU119", "model.layers.{0..1}.self_attn, model.layers.{0..1}.mlp")
    assert "has scales with which its values" in finding.message


def test_exponents_that_are_negated(folder: Path) -> None:
    """127 - e in place of 127 + e."""
    _one(found("ct-mxfp4", folder, "weight_scale", lambda exponents: 254 - (exponents - 4)))


@pytest.mark.parametrize(
    ("says", "zeros", "fix"), [("gptq_v2", 0x77777777, '"gptq"'), ("gptq", -0x77777778, '"gptq_v2"')]
)
def test_zero_points_of_the_other_version(says: str, zeros: int, fix: str, folder: Path) -> None:
    """Symmetric weights have 8 for every 0, which version 1 stores as 7."""
    name = "gptq symmetric by activations"
    edit: Edit = lambda words: np.full_like(words, zeros)  # noqa: E731
    (finding,) = found(name, folder, "qzeros", edit, checkpoint_format=says)
    assert finding.code == "BU119"
    assert finding.help.endswith(f"set `checkpoint_format` to {fix}")


@pytest.mark.parametrize(("name", "end"), [("gptq symmetric by activations", "g_idx"), ("ct-int4-order", "g_idx")])
def test_an_index_with_groups_of_other_sizes(name: str, end: str, folder: Path) -> None:
    (finding,) = found(name, folder, f"0.mlp.up_proj.{end}" if name[0] == "g" else f"0.mlp.up_proj.weight_{end}", late)
    assert finding.code == "BU115"
    assert "assigns 33 columns to one group, but `group_size` is 32" in finding.message


def late(index: np.ndarray) -> np.ndarray:
    """One column in another group than it was."""
    moved = index.copy()
    moved[np.argmax(moved == 0)] = 1
    return moved


def test_a_size_that_is_not_that_of_the_words(folder: Path) -> None:
    """compressed-tensors notes the rows and columns of each matrix that it packs."""
    (finding,) = found("ct-int4", folder, "0.mlp.up_proj.weight_shape", lambda size: size[::-1])
    assert finding.code == "BU115"
    assert "cannot drop `model.layers.0.mlp.up_proj.weight_shape`" in finding.message
    assert "it states [64, 96], but `weight_packed` has 96 rows of 8 words of 8 values" in finding.message
