"""Packed weights go back to the published bytes: every scheme, whatever rules do with the matrices.

The oracle is the file that the format's writer made.
"""

from __future__ import annotations

from itertools import cycle
from pathlib import Path

import pytest

from bringup.compile.convert.export import export
from bringup.compile.job import open_job
from bringup.compile.packed_job import pack_job
from bringup.diagnostics import BringupError
from tests.quantised.checkpoints import CASES, WHOLE_WORDS, write
from tests.quantised.formats import FORMATS
from tests.quantised.int4_formats import FORMATS as INT4

SLOW = pytest.mark.slow
FIRST = [*zip(FORMATS, cycle(CASES), strict=False), *zip(INT4, cycle(WHOLE_WORDS), strict=False)]
EVERY = [
    (name, family) for names, cases in ((FORMATS, CASES), (INT4, WHOLE_WORDS)) for name in names for family in cases
]
PAIRS = [*FIRST, *(pytest.param(*pair, marks=SLOW) for pair in EVERY if pair not in FIRST)]
# What is computed with rounding, or from JSON, does not go back, and is refused by the name of the computation.
REFUSED = {
    "ct-nvfp4": "reciprocal", "int8": "scale by 0.00787402", "nf4": "bitsandbytes: scales",
    "nf4 nested": "bitsandbytes: scales", "fp4 of 128": "fp4", "nf4 across rows": "nf4",
}  # fmt: skip
# Whose index is another for each expert: experts of one matrix have no packed form then.
OF_EXPERTS = {
    **dict.fromkeys(("gptq 2 v2 by activations", "gptq symmetric by activations"), "dequantise GPTQ"),
    "ct-int4-order": "dequantise compressed-tensors pack-quantized",
}
FILE = "model.safetensors"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("published")


@pytest.mark.parametrize(("name", "family"), PAIRS)
def test_the_file_is_the_published_one(name: str, family: str, folder: Path, tmp_path: Path) -> None:
    quantised, _ = write(family, {**FORMATS, **INT4}[name], folder)
    job = open_job(checkpoint=str(quantised))
    packed, back = pack_job(job).job, tmp_path / "back"
    if name in REFUSED or (name in OF_EXPERTS and "index each" in pack_job(job).summary):
        with pytest.raises(BringupError, match=f"BU117(.|\n)*{REFUSED.get(name) or OF_EXPERTS[name]}"):
            export(packed, back, with_dropped=job.checkpoint)
        assert not back.exists()
        return
    assert export(packed, back, with_dropped=job.checkpoint).left_out == {}
    for file in (FILE, "config.json"):
        assert (back / file).read_bytes() == (quantised / file).read_bytes()


@pytest.mark.parametrize("name", ["modelopt-nvfp4", "modelopt-nvfp4-config"])
def test_a_scalar_has_a_shape_without_the_checkpoint(name: str, folder: Path) -> None:
    """The second scale of NVFP4: dummy weights have it, and so has the job of a bundle whose checkpoint is gone."""
    quantised, _ = write("llama of words", FORMATS[name], folder)
    theirs = open_job(checkpoint=str(quantised))
    ours = open_job("llama", "dummy", config=dict(theirs.config)).checkpoint.headers
    assert ours["layers.0.mlp.up_proj.weight_scale_2"].shape == ()
    stored = {each.removeprefix("model."): info for each, info in theirs.checkpoint.headers.items()}
    assert {each: info.shape for each, info in ours.items()} == {each: stored[each].shape for each in ours}
