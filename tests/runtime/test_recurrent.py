"""Sequences of a model with recurrent layers: a state is that of its own sequence, and is never rewound."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import bringup
from bringup.cli.main import cli
from bringup.compile.estimate.sizes import dry_run
from bringup.compile.runtime.batch import Batch
from bringup.compile.runtime.opening import Opened
from bringup.compile.runtime.speculative import Speculative
from bringup.diagnostics import BringupError
from tests.runtime import recurrent
from tests.runtime.test_batch import alone, finish

TOKENS = np.random.default_rng(3).integers(0, recurrent.VOCAB, 240).tolist()
TARGETS = [pytest.param("torch", marks=pytest.mark.slow), "cpu"]


@pytest.fixture(scope="module", params=TARGETS)
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recurrent.compiled(tmp_path_factory.mktemp(request.param) / "b", request.param, max_batch_size=4)


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


@pytest.mark.slow
def test_drafts_are_refused(bundle: Path, tmp_path: Path) -> None:
    """Tokens that are not accepted would stay in the states of the model, or of the draft."""
    with pytest.raises(BringupError, match=r"BU024.*recurrent layers cannot check tokens of a draft"):
        recurrent.compiled(tmp_path / "b", "torch", draft_tokens=4)
    plain = bringup.open_job("llama", "dummy", config=recurrent.CONFIG)
    main = bringup.build(plain, out=tmp_path / "main", target="torch", buckets=(32,), draft_tokens=4)
    with pytest.raises(BringupError, match=r"BU049.*the draft has recurrent layers"):
        Speculative(bringup.load(main), bringup.load(bundle), 2)
    every = recurrent.compiled(tmp_path / "every", "torch", all_logits=True)
    with pytest.raises(BringupError, match=r"BU049.*every` has recurrent layers"):
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
