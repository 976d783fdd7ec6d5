"""A main model and its drafts in one checkpoint: each is loaded for itself, and the one feeds the other."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bringup.compile.job import open_job
from bringup.compile.pipeline import build, check
from bringup.compile.runtime.session import load
from bringup.compile.verify.command import verify
from bringup.diagnostics import BringupError
from tests.models import drafts, family, parity
from tests.models.test_deepseek_mtp import CASES, PROMPT, SIZES, STEPS, arrays, assert_parity, opened

CONFIG = CASES["groups-yarn"]
LAYERS = CONFIG.num_hidden_layers
TOKENS = parity.random_tokens(PROMPT + STEPS + 1, SIZES["vocab_size"])
HIDDEN = drafts.random_hidden(len(TOKENS), CONFIG.hidden_size)


SETTINGS: dict[str, Any] = {"target": "torch", "max_seq_len": 80, "buckets": (32,)}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    return drafts.save(CONFIG, tmp_path_factory.mktemp("beside"))


@pytest.fixture(scope="module")
def bundle(checkpoint: Path, tmp_path_factory) -> Path:
    """The draft, compiled."""
    return build(opened(checkpoint), out=tmp_path_factory.mktemp("bundle") / "draft", all_logits=True, **SETTINGS)


def changed(folder: Path, out: Path, rename=lambda name: name, **words: object) -> Path:
    """A checkpoint under other names, those of None left out, and with other words in its config.json."""
    tensors, config = drafts.read(folder)
    return drafts.write(out, {new: values for name, values in tensors.items() if (new := rename(name))}, config | words)


@pytest.mark.slow
def test_hidden_states_of_the_main_model_feed_the_draft(checkpoint: Path, bundle: Path, tmp_path: Path) -> None:
    """Row i of the draft: token i + 1, beside what the main model's head takes at token i."""
    main = load(build(open_job(checkpoint=str(checkpoint)), out=tmp_path / "main", aux_hidden=[LAYERS], **SETTINGS))
    draft = load(bundle)
    main.prefill(TOKENS[:PROMPT])
    logits = [draft.prefill(TOKENS[1 : PROMPT + 1], hidden=main.hidden[f"hidden.{LAYERS}"])]
    for token, following in zip(TOKENS[PROMPT:], TOKENS[PROMPT + 1 :], strict=False):
        main.decode(token)
        logits.append(draft.decode(following, hidden=main.hidden[f"hidden.{LAYERS}"])[None])

    with torch.no_grad():
        theirs = parity.load_reference(checkpoint)(torch.tensor([TOKENS[:-1]]), output_hidden_states=True)
    wanted = drafts.logits(checkpoint, TOKENS[1:], theirs.hidden_states[LAYERS][0].numpy())
    ours = np.concatenate(logits)
    assert parity.distance(ours, wanted).worst <= family.WORST["torch"]
    before = drafts.logits(checkpoint, TOKENS[1:], theirs.hidden_states[LAYERS - 1][0].numpy())
    assert parity.distance(ours, before).worst > 100 * family.WORST["torch"]


def test_each_drops_what_is_the_others(checkpoint: Path) -> None:
    main, draft = open_job(checkpoint=str(checkpoint)).plan, opened(checkpoint).plan
    of_draft = {name for name in main.headers if name.startswith(f"model.layers.{LAYERS}.")}
    assert main.dropped.keys() == of_draft
    assert draft.dropped.keys() == main.headers.keys() - of_draft
    assert {drop.why for drop in draft.dropped.values()} == {"of the model that is drafted for: `deepseek_v3`"}
    assert all("`deepseek_mtp`" in drop.why for drop in main.dropped.values())


def test_every_tensor_of_the_draft_matters(checkpoint: Path, tmp_path: Path) -> None:
    """Overlooked, each of the parts that a draft adds moves transformers' own logits ten tolerances or more."""
    tensors, config = drafts.read(checkpoint)
    before = drafts.logits(checkpoint, TOKENS, HIDDEN)
    shutil.copytree(checkpoint.parent / "whole", tmp_path / "whole")
    for number, name in enumerate(
        ("enorm", "hnorm", "eh_proj", "shared_head.norm", "shared_head.head", "embed_tokens")
    ):
        full = f"model.layers.{LAYERS}.{name}.weight"
        other = tensors | {full: parity._overlooked(tensors[full], full)}
        folder = drafts.write(tmp_path / str(number), other, config)
        moved = parity.distance(drafts.logits(folder, TOKENS, HIDDEN), before).worst
        assert moved > 10 * family.WORST["torch"], f"{name} moves the logits by {moved:.1e} only"


@pytest.mark.parametrize("case", ["groups-yarn", "dense-straight-queries-tied"])
def test_the_main_models_embedding_and_head_serve(case: str, tmp_path: Path) -> None:
    folder = drafts.save(CASES[case], tmp_path, own=False)
    (stored, config), ours = drafts.read(folder), arrays(opened(folder))
    assert (ours["model.embed_tokens.weight"] == stored["model.embed_tokens.weight"].numpy()).all()
    head = "model.embed_tokens.weight" if config.get("tie_word_embeddings") else "lm_head.weight"
    assert (ours["lm_head.weight"] == stored[head].numpy()).all()
    without = changed(folder, tmp_path / "without", lambda name: "" if name == head else name)
    (finding,) = check(opened(without)).errors
    assert (finding.code, finding.sources) == ("BU101", (head,))


def test_names_with_mtp_block(checkpoint: Path, tmp_path: Path) -> None:
    """As vLLM names what a draft shares with a layer; of two tensors that would be one, one is nobody's."""
    at = f"model.layers.{LAYERS}."

    def rename(name: str) -> str:
        own = any(part in name for part in ("enorm", "hnorm", "eh_proj", "shared_head", "embed_tokens"))
        return name if own else name.replace(at, f"{at}mtp_block.")

    folder = changed(checkpoint, tmp_path / "renamed", rename)
    job = opened(folder)
    ours, plain = arrays(job), arrays(opened(checkpoint))
    assert all((ours[name] == plain[name]).all() for name in plain)
    assert any(name.startswith(f"{at}mtp_block.") for name in job.plan.required)
    assert open_job(checkpoint=str(folder)).plan.dropped.keys() == {n for n in job.plan.headers if n.startswith(at)}

    tensors, config = drafts.read(folder)
    twice = {f"{at}input_layernorm.weight": torch.ones(CONFIG.hidden_size)}
    (finding,) = check(opened(drafts.write(tmp_path / "twice", tensors | twice, config))).errors
    assert (finding.code, finding.sources) == ("BU105", (f"{at}mtp_block.input_layernorm.weight",))


@pytest.mark.parametrize("target", ["not compiled", pytest.param("torch", marks=pytest.mark.slow)])
def test_each_of_two_drafts(target: str, tmp_path: Path) -> None:
    folder = drafts.save(CONFIG, tmp_path, drafts=2)
    assert not check(open_job(checkpoint=str(folder))).findings
    _, config = drafts.read(folder)
    for depth in (1, 2):
        job = opened(folder, config=config | {"mtp_depth": depth})
        other = {n for n, drop in job.plan.dropped.items() if "mtp_depth" in drop.why}
        assert other == {n for n in job.plan.headers if n.startswith(f"model.layers.{LAYERS + 2 - depth}.")}
    wanted = drafts.logits(folder, TOKENS, HIDDEN, depth=2)
    if target == "torch":
        assert_parity(job, wanted, TOKENS, HIDDEN, target, tmp_path / "b")
    else:
        family.assert_near(family.eager_logits(job, TOKENS, PROMPT, hidden=HIDDEN), wanted, "torch")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"num_nextn_predict_layers": 0}, "BU121.*num_nextn_predict_layers.*no draft"),
        ({"mtp_depth": 2}, "BU124.*mtp_depth.*2"),
        ({"model_type": "glm4_moe"}, "BU125.*glm4_moe"),
    ],
)
def test_drafts_that_are_not_there(checkpoint: Path, tmp_path: Path, words: dict[str, object], said: str) -> None:
    with pytest.raises(BringupError, match=said) as caught:
        check(opened(changed(checkpoint, tmp_path / "other", **words))).raise_if_errors()
    assert len(caught.value.findings) == 1


def test_a_draft_whose_tensors_are_not_there(checkpoint: Path, tmp_path: Path) -> None:
    """As transformers saves a model: without what it does not read. One finding, which names the layer."""
    at = f"model.layers.{LAYERS}."
    folder = changed(checkpoint, tmp_path / "without", lambda name: "" if name.startswith(at) else name)
    assert not check(open_job(checkpoint=str(folder))).findings
    (finding,) = check(opened(folder)).errors
    assert (finding.code, at[:-1] in finding.message) == ("BU101", True)


def test_a_step_without_hidden_states(checkpoint: Path, bundle: Path) -> None:
    session = load(bundle)
    with pytest.raises(BringupError, match=r"BU029.*'hidden': \(2, 42\)"):
        session.prefill([1, 2])
    for model, source in ((str(bundle), None), ("deepseek_mtp", str(checkpoint))):
        with pytest.raises(BringupError, match=r"BU029.*`deepseek_mtp` requires `hidden` besides tokens"):
            verify(model, source)
