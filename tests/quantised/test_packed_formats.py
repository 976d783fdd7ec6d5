"""Every published format in every family: transformers' logits of the values that it stands for, by both routes."""

from __future__ import annotations

from pathlib import Path

import pytest

from bringup.compile.estimate.sizes import dry_run
from bringup.compile.job import open_job
from bringup.compile.packed_job import pack_job
from bringup.diagnostics import BringupError
from tests.models import family, parity
from tests.quantised import formats, int4_formats
from tests.quantised.checkpoints import CASES, WHOLE_WORDS, write

FORMATS = {**int4_formats.FORMATS, **formats.FORMATS}
PAIRS = [(name, list(WHOLE_WORDS)[k % 5]) for k, name in enumerate(int4_formats.FORMATS)]
PAIRS += [(name, list(CASES)[k % 4]) for k, name in enumerate(formats.FORMATS)]
EVERY = [(name, case) for name in FORMATS for case in (WHOLE_WORDS if name in int4_formats.FORMATS else CASES)]
OTHERS = [pytest.param(*pair, marks=pytest.mark.slow) for pair in EVERY if pair not in PAIRS]
FLOATS = ("fp4 of 128", "nf4 across rows")  # blocks go from row to row, which no form says


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("formats")


@pytest.mark.parametrize(("name", "case"), [*PAIRS, *OTHERS])
def test_logits(name: str, case: str, folder: Path) -> None:
    """Of a prompt and of decode, dequantised and packed: nothing that rules do with the matrices changes them."""
    quantised, exact = write(case, FORMATS[name], folder)
    job = open_job(checkpoint=str(quantised))
    packed = pack_job(job)
    assert (len(packed.names) >= 8) == (name not in FLOATS), packed.summary
    tokens = parity.random_tokens(20, job.graph.config.vocab_size)
    wanted = family.stepwise(parity.load_reference(exact), tokens, 17)
    floats, ours = (family.eager_logits(each, tokens, 17) for each in (job, packed.job))
    assert abs(floats - wanted).max() <= family.WORST["torch"] * abs(wanted).max()
    assert abs(ours - floats).max() <= 1e-5 * abs(floats).max()


@pytest.mark.parametrize("name", FLOATS)
def test_matrices_without_a_form_are_reported(name: str, folder: Path) -> None:
    """`compile` states that they are dequantised, and why; `--weights packed` fails with that reason."""
    quantised, _ = write("llama of words", FORMATS[name], folder)
    job = open_job(checkpoint=str(quantised))
    reason = "its blocks continue from row to row"
    packed = pack_job(job)
    assert packed.floats
    assert set(packed.floats.values()) == {reason}
    assert packed.summary.startswith(f"{len(packed.names)} parameters packed, {len(packed.floats)} dequantised (")
    assert len(packed.names) + len(packed.floats) == 14
    assert reason in dry_run(job, "torch", 64).quantised_form
    assert dry_run(job, "torch", 64, weights_form="float").quantised_form.startswith("14 parameters dequantised")
    if not packed.names:
        with pytest.raises(BringupError, match=f"BU410: no weight can stay packed: 0 .*{reason}"):
            dry_run(job, "torch", 64, weights_form="packed")
