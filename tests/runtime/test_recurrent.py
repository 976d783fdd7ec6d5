"""Sequences of a model with recurrent layers: a state is that of its own sequence, and is never rewound.

With a draft it never contains a proposal that may be removed.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import bringup
from bringup.cli.main import cli
from bringup.compile.estimate.sizes import dry_run
from bringup.compile.program.assemble import trace_entry
from bringup.compile.program.export_options import layout_of
from bringup.compile.program.program import EntryPoint
from bringup.compile.program.trace import tracer_of
from bringup.compile.runtime.acceptance import Proposal, Sampler
from bringup.compile.runtime.batch import Batch
from bringup.compile.runtime.drafts import open_drafts
from bringup.compile.runtime.opening import Opened
from bringup.compile.runtime.speculative import Speculative
from bringup.diagnostics import BringupError
from bringup.graphs.llama import LlamaConfig
from tests.runtime import recurrent
from tests.runtime.test_batch import alone, finish
from tests.schedule.test_refused import Sums

TOKENS = np.random.default_rng(3).integers(0, recurrent.VOCAB, 240).tolist()
K = 4
TARGETS = [pytest.param("torch", marks=pytest.mark.slow), "cpu"]


@pytest.fixture(scope="module", params=TARGETS)
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recurrent.compiled(
        tmp_path_factory.mktemp(request.param) / "b", request.param, max_batch_size=4, draft_tokens=K
    )


@pytest.fixture(scope="module")
def opened(bundle: Path) -> Opened:
    return bringup.load_batch(bundle)._opened


def requests(count: int, shared: int = 0) -> list[bringup.Request]:
    """The first `shared` tokens are the same in all of them."""
    random = np.random.default_rng(count)
    return [
        bringup.Request(
            TOKENS[:shared] + random.integers(0, recurrent.VOCAB, int(random.integers(1, 60))).tolist(),
            max_new_tokens=int(random.integers(4, 20)), temperature=index % 2, seed=index,
        )
        for index in range(count)
    ]  # fmt: skip


def test_requests_that_join_and_leave(opened: Opened) -> None:
    """A row of the states is used by one sequence after another."""
    given = requests(9)
    opened.executor.reset()
    assert finish(Batch(opened), given, 3) == alone(opened, given)


def test_a_common_prefix_is_computed_by_each(opened: Opened) -> None:
    """The state after a block of tokens is not in the block."""
    given, batch = requests(5, shared=140), Batch(opened)
    opened.executor.reset()
    assert finish(batch, given, 2) == alone(opened, given)
    assert batch.shared_tokens == 0
    assert batch.unshared == "recurrent layers"


def test_commands_note_what_is_not_shared(bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = tmp_path / "requests.jsonl"
    lines.write_text('{"tokens": [1, 2], "max_new_tokens": 1}\n' * 2)
    done = CliRunner().invoke(cli, ["run", str(bundle), "--batch", str(lines)])
    assert "prefill of 4 tokens, none shared because of recurrent layers" in done.stderr
    monkeypatch.setattr("bringup.compile.serve.server.serve", lambda opening, **_: opening())
    done = CliRunner().invoke(cli, ["serve", str(bundle)])
    assert "note: no prompts share a prefix, because the model has recurrent layers" in done.stderr


@pytest.mark.slow
def test_a_preempted_sequence_begins_again(opened: Opened, tmp_path: Path) -> None:
    given = [bringup.Request(TOKENS[at : at + 60], max_new_tokens=20, temperature=1.0, seed=at) for at in range(5)]
    small = recurrent.compiled(tmp_path / "small", opened.manifest["target"], max_batch_size=4, cache_blocks=4)
    batch = bringup.load_batch(small)
    assert finish(batch, given, 1) == alone(opened, given)
    assert batch.preemptions > 0


def test_a_session_that_continues_and_one_that_goes_back(bundle: Path) -> None:
    session, fresh = bringup.load(bundle), bringup.load(bundle)
    prompt, first = TOKENS[:90], list(session.generate(TOKENS[:90], max_new_tokens=5))
    longer = [*prompt, *first, 7, 8]
    for tokens, computed in ((longer, 3), (longer[:-1], len(longer) - 1), ([*prompt[:50], 1], 51)):
        again = list(session.generate(tokens, max_new_tokens=5, resume=True))
        assert session.stats.prefill_tokens == computed
        assert again == list(fresh.generate(tokens, max_new_tokens=5))
    assert session.interface.rewindable == 0
    assert not session.rewind(10)


def test_a_sequence_that_begins_ignores_what_is_in_its_row(bundle: Path) -> None:
    session = bringup.load(bundle)
    expected = session.prefill(TOKENS[:40])
    list(session.generate(TOKENS[100:200], max_new_tokens=2))
    session._engine.rewind(session._cached, 0)  # without the zeros of `reset`
    assert np.array_equal(session.prefill(TOKENS[:40]), expected)


@pytest.mark.parametrize("period", [0, 3])
def test_a_draft(opened: Opened, bundle: Path, period: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model is its own draft, and right, or wrong at every `period`th proposal."""
    given, count, propose = [replace(each, temperature=0.0) for each in requests(6)], 0, Sampler.propose

    def proposed(sampler: Sampler, logits: np.ndarray) -> Proposal:
        nonlocal count
        count += 1
        return propose(sampler, np.roll(logits, period > 0 and count % period == 0))

    monkeypatch.setattr(Sampler, "propose", proposed)
    opened.executor.reset()
    batch = Batch(opened, None, open_drafts(opened, bundle, K))
    assert finish(batch, given, 3) == alone(opened, given)
    assert batch.drafts
    assert (batch.drafts.stats.acceptance_rate == 1.0) is (period == 0)


def test_an_operation_that_would_store_proposals() -> None:
    """One of a user that writes its state after all tokens of a step; the test of the schedule has such a graph."""
    point = EntryPoint(num_tokens=9, num_sequences=1, decode=False, contiguous=True, proposals=True)
    graph = Sums(LlamaConfig.from_hf(recurrent.CONFIG))
    layout = layout_of(graph, 64, (32,), draft_tokens=4)
    assert point in layout.entries
    with pytest.raises(BringupError, match=r"BU304.*prologue` would store recurrent states after proposals"):
        trace_entry(layout, point, tracer_of(graph, layout, source_lines=False, fixed_sizes=True))


@pytest.mark.slow
def test_drafts_that_do_not_fit(bundle: Path, tmp_path: Path) -> None:
    """Proposals would stay in the states of the model, or of the draft."""
    plain = bringup.open_job("llama", "dummy", config=recurrent.CONFIG)
    main = bringup.build(plain, out=tmp_path / "main", target="torch", buckets=(32,), draft_tokens=5)
    message = r"BU049.*the draft has recurrent layers.*support 4 proposals, not 5\n.*-tokens 5, or .*-tokens 4"
    with pytest.raises(BringupError, match=message):
        Speculative(bringup.load(main), bringup.load(bundle), 5)
    every = recurrent.compiled(tmp_path / "every", "torch", all_logits=True)
    with pytest.raises(BringupError, match=r"BU049.*every` has recurrent layers.*support 0 proposals, not 2"):
        Speculative(bringup.load(every), bringup.load(main), 2)


def test_the_bytes_of_states(opened: Opened) -> None:
    r = recurrent
    channels = 2 * r.KEY_HEADS * r.K + r.VALUE_HEADS * r.V
    each = 4 * 2 * (channels * (r.TAPS - 1) + r.VALUE_HEADS * r.K * r.V)  # float32, of two layers
    sizes = dry_run(r.job(), opened.manifest["target"], None, 4)
    assert sizes.recurrent == 5 * each  # four sequences and padding
    assert sizes.cache == sum(4 * math.prod(state.shape) for state in opened.interface.states)
    assert sizes.cache_per_token == 4 * 2 * 2 * 6
    assert "of it for recurrent states" in dict(sizes.rows)["cache"]
