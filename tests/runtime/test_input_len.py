"""`--max-input-len`: the longest prompt, which decides the prefill lengths and is checked at run time."""

from __future__ import annotations

import pytest

import bringup
from bringup.compile.bundle.bundle_key import CacheKeys
from bringup.compile.program.export_options import layout_of
from bringup.compile.runtime.engine import Engine
from bringup.compile.runtime.request import Request
from bringup.compile.runtime.session import Session
from bringup.compile.targets.selection import select
from bringup.diagnostics import BringupError
from tests.runtime import exact


@pytest.fixture(scope="module")
def job() -> bringup.compile.Job:
    config = {"model_type": "gpt2", "n_layer": 1, "n_embd": 8, "n_head": 2, "vocab_size": 30, "n_positions": 512}
    return bringup.open_job("gpt2", "dummy", config=config)


@pytest.mark.parametrize(("most", "buckets"), [(None, [32, 256]), (512, [32, 256]), (33, [32, 256]), (32, [32])])
def test_prefill_lengths_beyond_the_longest_prompt_are_not_compiled(job, most, buckets):
    layout = layout_of(job.graph, 512, max_input_len=most)
    assert (layout.buckets, layout.max_input_len) == (buckets, most)


@pytest.mark.parametrize("most", [0, -1, 513, 1.5, "9"])
def test_what_is_no_length(job, most):
    with pytest.raises(BringupError, match=r"BU024: .*`max_input_len`"):
        layout_of(job.graph, 512, max_input_len=most)


def test_it_is_part_of_a_bundles_key(job):
    keys = {CacheKeys.of(job, layout_of(job.graph, 512, max_input_len=most), select("torch", None)).key
            for most in (None, 40, 41)}  # fmt: skip
    assert "" not in keys
    assert len(keys) == 3


def test_a_batch_refuses_longer_prompts():
    batch = exact.new_batch()
    batch._engine = Engine(batch.manifest | {"max_input_len": 3}, batch.executor, batch.interface, share_blocks=True)
    with pytest.raises(BringupError, match=r"BU016: 4 tokens are more than the bundle's longest prompt of 3"):
        batch.add(Request([1, 2, 3, 4], max_new_tokens=1))
    batch.check(Request([1, 2, 3], max_new_tokens=100))


def test_a_session_refuses_longer_prompts_and_goes_on_behind_shorter_ones():
    opened = exact.new_batch(1)._opened
    opened.manifest["max_input_len"] = 3
    session = Session(opened)
    with pytest.raises(BringupError, match=r"BU016: .*longest prompt of 3"):
        next(session.generate([1, 2, 3, 4], max_new_tokens=1))
    assert list(session.generate([1, 2, 3], max_new_tokens=9)) == exact.expected(Request([1, 2, 3], max_new_tokens=9))
