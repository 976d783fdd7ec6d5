"""A draft that reads hidden states of a main model with recurrent layers, which processes accepted tokens again."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

import bringup
from bringup.compile.runtime.speculative import Speculative
from tests.models import drafts
from tests.models.test_qwen3_mtp import CASES
from tests.runtime.test_speculative_hidden import VOCAB, K, assert_expected, compiled


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "target", "count"), [("next", "torch", 1), ("next", "cpu", K), ("dense-sections-of-rope", "torch", K)]
)
def test_proposals(case: str, target: str, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = copy.deepcopy(CASES[case])
    config.vocab_size = VOCAB
    checkpoint = drafts.save(config, tmp_path / "saved")
    states = [config.num_hidden_layers]
    main = compiled(checkpoint, tmp_path / "main", target, None, aux_hidden=states, draft_tokens=K)
    draft = compiled(checkpoint, tmp_path / "draft", target, "qwen3_mtp", aux_hidden=[1])
    with bringup.load(main) as model, bringup.load(draft) as other:
        assert model.interface.recurrent
        assert_expected(Speculative(model, other, count), checkpoint, monkeypatch)
