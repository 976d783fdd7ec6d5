"""`--activations int8`: whole models by each target that takes it, next to the graph's own operations and to floats."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from bringup.compile.bisect.eager import Eager
from bringup.compile.job import Job, open_job
from bringup.compile.packed_job import pack_job
from bringup.compile.parity.rounding import bound_of, judge
from bringup.compile.pipeline import build
from bringup.compile.runtime.session import load
from bringup.compile.targets.selection import select
from bringup.compile.verify.evidence import exact, rounding, rounds
from bringup.diagnostics import BringupError
from bringup.graphs.core.options import GraphOptions
from tests.models import parity
from tests.quantised.checkpoints import plain

SAME = 2e-3  # of the largest logit: one activation may round to the other of two codes, where sums of float32 differ
INT8 = GraphOptions(quantize="int8", activations="int8")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(plain("llama", tmp_path_factory.mktemp("activations")))


@pytest.fixture(scope="module")
def job(source: str) -> Job:
    return open_job(checkpoint=source, options=INT8)


@pytest.mark.parametrize("target", ["llvm", pytest.param("torch", marks=pytest.mark.slow)])
def test_logits_are_those_of_the_graph(job: Job, tmp_path: Path, target: str) -> None:
    tokens = parity.random_tokens(12, job.graph.config.vocab_size)
    wanted, floats = (Eager(each, 32).whole(tokens) for each in (rounding(job), exact(job)))
    bundle = build(job, out=tmp_path / "b", target=target, max_seq_len=32, buckets=(8,))
    assert json.loads((bundle / "manifest.json").read_text("utf-8"))["graph_options"] == INT8.non_default()
    session = load(bundle)
    found = [session.prefill(tokens[:9]).reshape(-1)]
    found += [session.decode(token).reshape(-1) for token in tokens[9:]]
    largest = np.abs(wanted).max()
    assert np.abs(np.stack(found) - wanted[8:]).max() <= SAME * largest
    assert np.abs(floats - wanted).max() > 2 * SAME * largest
    if target == "llvm":  # the reference executor runs the same launches
        again = load(bundle, "reference").prefill(tokens[:9]).reshape(-1)
        assert np.abs(again - wanted[8]).max() <= SAME * largest


def test_the_bound_is_what_rounding_moves(job: Job) -> None:
    """Logits of the rounding graph are within it, and those of rounding to fewer bits are not."""
    assert rounds(job)
    tokens = parity.random_tokens(16, job.graph.config.vocab_size)
    wanted, floats = (Eager(each, 32).whole(tokens) for each in (rounding(job), exact(job)))
    bound = bound_of(floats, wanted, "float32")
    assert bound.noise is not None
    median = float(np.median(bound.noise))
    assert judge("decode", wanted, bound, median).ok
    assert not judge("decode", floats + 5 * (wanted - floats), bound, median).ok


def test_the_weights_that_are_packed_say_so(job: Job, source: str) -> None:
    packed = pack_job(job).job.graph.layers[0]
    one = pack_job(open_job(checkpoint=source, options=GraphOptions(quantize="int8"))).job.graph.layers[0]
    assert packed.structural_key() != one.structural_key()


def test_refusals(job: Job, source: str, tmp_path: Path) -> None:
    with pytest.raises(BringupError, match="BU024"):
        select("cuda:sm_90").check_activations(job.graph)
    floats = open_job(checkpoint=source, options=GraphOptions(activations="int8"))
    with pytest.raises(BringupError, match="BU410") as caught:
        build(floats, out=tmp_path / "b", target="torch")
    assert "leave --activations out" in caught.value.findings[0].help
    with pytest.raises(BringupError, match="BU410"):
        build(job, out=tmp_path / "b", target="torch", weights_form="float")
    with pytest.raises(BringupError, match="BU024"):
        GraphOptions(activations="int4")
