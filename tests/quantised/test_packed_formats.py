"""Every published format that can stay packed: the logits of the float route, whatever rules do with the matrices."""

from __future__ import annotations

from pathlib import Path

import pytest

from bringup.compile.job import open_job
from bringup.compile.packed_job import pack_job
from tests.models import family, parity
from tests.quantised import formats, int4_formats
from tests.quantised.checkpoints import CASES, WHOLE_WORDS, write

FORMATS = {**int4_formats.FORMATS, **formats.FORMATS}
PAIRS = [(name, list(WHOLE_WORDS)[k % 5]) for k, name in enumerate(int4_formats.FORMATS)]
PAIRS += [(name, list(CASES)[k % 4]) for k, name in enumerate(formats.FORMATS)]
FLOATS = ("fp4 of 128", "nf4 across rows")  # blocks go from row to row, which no form says


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("formats")


@pytest.mark.parametrize(("name", "case"), PAIRS)
def test_logits_are_those_of_the_float_route(name: str, case: str, folder: Path) -> None:
    quantised, _ = write(case, FORMATS[name], folder)
    job = open_job(checkpoint=str(quantised))
    packed = pack_job(job)
    assert (len(packed.names) >= 8) == (name not in FLOATS), packed.summary
    tokens = parity.random_tokens(20, job.graph.config.vocab_size)
    wanted, ours = (family.eager_logits(each, tokens, 17) for each in (job, packed.job))
    assert abs(ours - wanted).max() <= 1e-5 * abs(wanted).max()
