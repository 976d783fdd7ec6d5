"""Hidden states given beside the logits are transformers' `hidden_states`, in prefill, in chunks and in decode."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaConfig

import bringup
from bringup.diagnostics import BringupError
from tests.models import parity

LAYERS, TOKENS = 3, 45
SIZES = {"vocab_size": 61, "hidden_size": 24, "intermediate_size": 20, "num_attention_heads": 3}
REQUESTED = (3, 0, 2)  # in any order


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    config = LlamaConfig(**SIZES, num_hidden_layers=LAYERS, max_position_embeddings=128)
    return parity.save_checkpoint(config, tmp_path_factory.mktemp("aux") / "model")


@pytest.mark.parametrize("target", ["torch", pytest.param("cpu", marks=pytest.mark.slow)])
def test_they_are_those_of_transformers(checkpoint: Path, target: str, tmp_path: Path) -> None:
    tokens = parity.random_tokens(TOKENS, SIZES["vocab_size"])
    with torch.no_grad():
        output = parity.load_reference(checkpoint)(torch.tensor([tokens]), output_hidden_states=True)
    job = bringup.open_job(checkpoint=str(checkpoint))
    out = bringup.build(job, out=tmp_path / "b", target=target, buckets=(32,), aux_hidden=REQUESTED)
    session = bringup.load(out)
    logits = session.prefill(tokens[:-1])  # a run of 32, and one of 12 that is padded
    prompt = dict(session.hidden)
    session.decode(tokens[-1])
    assert prompt.keys() == session.hidden.keys() == {f"hidden.{index}" for index in REQUESTED}
    for index in REQUESTED:
        theirs = output.hidden_states[index][0].numpy()
        ours = np.concatenate([prompt[f"hidden.{index}"], session.hidden[f"hidden.{index}"]])
        assert ours.shape == theirs.shape
        assert np.abs(ours - theirs).max() <= 1e-4 * np.abs(theirs).max()
    assert np.abs(logits[-1] - output.logits[0, -2].numpy()).max() <= 1e-4


def test_one_that_is_not_there(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(BringupError, match=r"BU028.*hidden state 4.*3 layers"):
        bringup.build(bringup.open_job(checkpoint=str(checkpoint)), out=tmp_path / "b", aux_hidden=[1, 4])
    assert not list(tmp_path.iterdir())


def test_arrays_that_the_model_does_not_take(checkpoint: Path, tmp_path: Path) -> None:
    job = bringup.open_job(checkpoint=str(checkpoint))
    session = bringup.load(bringup.build(job, out=tmp_path / "b", target="torch", buckets=(32,)))
    with pytest.raises(BringupError, match="BU029"):
        session.prefill([1, 2], hidden=np.zeros((2, 24), np.float32))
    assert session.hidden == {}
