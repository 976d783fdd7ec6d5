"""Sessions that are misused or fail, sampling, where bundles may be written, weights that are not the program's."""

from __future__ import annotations

import gc
import json
import os
import shutil
import weakref
from pathlib import Path

import numpy as np
import pytest

import bringup
from bringup.compile.bundle.folder import refuse, writing
from bringup.compile.job import open_job
from bringup.compile.pipeline import build
from bringup.compile.runtime.sampling import next_token
from bringup.compile.runtime.session import Session
from bringup.diagnostics import BringupError
from bringup.graphs.gpt2 import SIZES

TINY = SIZES["gpt2"] | {"n_layer": 1, "n_head": 2, "n_embd": 8, "n_positions": 64, "vocab_size": 21}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("session")
    (folder / "config.json").write_text(json.dumps(TINY))
    job = open_job("gpt2", "dummy", config=str(folder / "config.json"))
    return build(job, out=folder / "b", target="torch", buckets=(16,))


@pytest.fixture
def session(bundle) -> Session:
    return bringup.load(bundle)


# --- one sequence at a time


@pytest.mark.parametrize(
    ("count", "entries"),
    [(1, ["decode"]), (2, ["prefill_16"]), (17, ["prefill_16", "decode"]), (18, ["prefill_16"] * 2)],
)
def test_one_token_of_a_prompt_is_no_padded_prefill(session, monkeypatch, count: int, entries: list[str]) -> None:
    """A prompt of one token, and the last one of a long prompt; results are those of tokens taken one by one."""
    run, step = [], session.executor.step
    monkeypatch.setattr(session.executor, "step", lambda entry, given: run.append(entry) or step(entry, given))
    logits = session.prefill(range(count))
    assert run == entries
    session.reset()
    one_by_one = [session.decode(token) for token in range(count)]
    np.testing.assert_allclose(logits[-1], one_by_one[-1], rtol=0, atol=1e-5)


@pytest.mark.parametrize("use", ["generate", "prefill", "decode", "reset"])
def test_a_generate_that_was_overtaken_does_not_go_on(session, use):
    old = session.generate([1, 2], max_new_tokens=9)
    next(old)
    if use == "generate":
        new = session.generate([3], max_new_tokens=4)
        first = next(new)
    else:
        getattr(session, use)(*{"prefill": ([3],), "decode": (3,), "reset": ()}[use])
    with pytest.raises(BringupError, match="BU017"):
        next(old)
    if use == "generate":
        assert [first, *new] == list(session.generate([3], max_new_tokens=4))


@pytest.mark.parametrize("load", [bringup.load, bringup.load_batch])
def test_the_last_reference_frees_the_weights(bundle, load):
    """At once, not when cycles are collected: weights are mapped, and a disk with mapped files cannot be unmounted."""
    gc.disable()
    try:
        opened = load(bundle)
        executor = weakref.ref(opened.executor)
        assert executor() is not None
        del opened
        assert executor() is None
    finally:
        gc.enable()


def test_generates_one_after_the_other_are_no_mistake(session):
    for _ in range(2):
        stopped = session.generate([1, 2], max_new_tokens=9)
        next(stopped)
    assert len(list(session.generate([1], max_new_tokens=3))) == 3


def test_a_failure_within_a_prompt_leaves_no_half_of_it(session, monkeypatch):
    tokens, wanted = [i % 21 for i in range(40)], session.prefill([5, 6])
    step, calls = session.executor.step, []

    def breaks(entry: str, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        calls.append(entry)
        if len(calls) == 2:
            raise RuntimeError("device lost")
        return step(entry, arrays)

    session.reset()
    with monkeypatch.context() as patch:
        patch.setattr(session.executor, "step", breaks)
        with pytest.raises(RuntimeError, match="device lost"):
            session.prefill(tokens)
    assert calls == ["prefill_16", "prefill_16"]
    assert np.array_equal(session.prefill([5, 6]), wanted)


def test_refused_tokens_leave_the_sequence_as_it_was(session):
    whole = session.prefill([1, 2, 3])
    session.reset()
    session.prefill([1, 2])
    with pytest.raises(BringupError, match="BU015"):
        session.decode(21)
    assert np.allclose(session.decode(3), whole[-1], atol=1e-6)


@pytest.mark.parametrize("token", [1.7, 1.0, np.float32(1), "1", None])
def test_what_is_no_integer_is_no_token(session, token):
    for use in (lambda: session.prefill([2, token]), lambda: session.decode(token)):
        with pytest.raises(BringupError, match=r"BU015.*integer"):
            use()


def test_integers_of_numpy_are_tokens(session):
    wanted = session.prefill([1, 2])
    for tokens in (np.array([1, 2]), np.array([1, 2], np.uint8), [np.int32(1), 2]):
        session.reset()
        assert np.array_equal(session.prefill(tokens), wanted)
    with pytest.raises(BringupError, match="BU015"):
        session.prefill(np.array([], np.int64))


def test_a_torch_bundle_leaves_no_choice_of_executor(bundle):
    with pytest.raises(BringupError, match="BU018"):
        bringup.load(bundle, "local-task")


def test_an_unknown_device_is_reported_with_those_there_are(bundle, tmp_path):
    (tmp_path / "b").symlink_to(bundle)
    manifest = json.loads((bundle / "manifest.json").read_text()) | {"target": "cpu"}
    for name in ("weights.safetensors", "programs"):
        (tmp_path / name).symlink_to(bundle / name)
    manifest["files"] = {}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(BringupError, match="BU018") as caught:
        bringup.load(tmp_path, "local-tsk")
    assert "local-task" in caught.value.findings[0].help


# --- sampling


@pytest.mark.parametrize(
    ("temperature", "top_p"),
    [(-1.0, 1.0), (float("nan"), 1.0), (float("inf"), 1.0), (1.0, 0.0), (1.0, 1.1), (1.0, float("nan")), (0.0, -1.0)],
)
def test_sampling_out_of_range(session, monkeypatch, temperature, top_p):
    monkeypatch.setattr(session.executor, "step", lambda *_: pytest.fail("ran"))
    with pytest.raises(BringupError, match="BU019"):
        next(session.generate([1], max_new_tokens=1, temperature=temperature, top_p=top_p))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(("bad", "said"), [(np.nan, "NaN"), (np.inf, "infinity")])
def test_logits_that_are_no_numbers_give_no_token(temperature, bad, said):
    logits = np.array([0, 1, bad, 2], np.float32)
    with pytest.raises(BringupError, match=f"BU607.*returned {said}"):
        next_token(logits, temperature, 1.0, np.random.default_rng(0))


def test_sampling_at_its_edges():
    random = np.random.default_rng(0)
    logits = np.array([-np.inf, 1, 3, 2], np.float32)
    assert next_token(logits, 0, 1.0, random) == 2
    assert {next_token(logits, 1e-320, 1.0, random) for _ in range(20)} == {2}
    assert {next_token(logits, 1.0, 1e-9, random) for _ in range(20)} == {2}
    assert {next_token(logits, 9.0, 1.0, random) for _ in range(99)} == {1, 2, 3}


def test_a_nucleus_that_ends_between_equal_tokens():
    """Tokens are those of whole numbers: a sum of rounded twelfths is below a half after six of them."""
    for seed in range(20):
        uniform = np.random.default_rng(seed).random()
        found = next_token(np.zeros(12, np.float32), 1.0, 0.5, np.random.default_rng(seed))
        assert found == int(6 * uniform)
        assert next_token(np.zeros(5, np.float32), 1.0, 0.2, np.random.default_rng(seed)) == 0


# --- where a bundle is put


@pytest.mark.parametrize("out", [".", "", "..", "../..", "inner/..", "../here", "link"])
@pytest.mark.parametrize("is_bundle", [False, True])
def test_the_working_directory_is_no_place_for_a_bundle(tmp_path, monkeypatch, out, is_bundle):
    here = tmp_path / "here"
    (here / "inner").mkdir(parents=True)
    (here / "link").symlink_to(here)
    if is_bundle:
        (here / "manifest.json").write_text("{}")
    monkeypatch.chdir(here)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(BringupError, match="BU012"):
        refuse(Path(out), force=True)
    assert sorted(tmp_path.rglob("*")) == before


def put(out: Path, text: str) -> None:
    refuse(out, force=True)
    with writing(out) as folder:
        (folder / "manifest.json").write_text(text)


def test_a_bundle_through_links_and_relative_paths(tmp_path, monkeypatch):
    (tmp_path / "real").mkdir()
    (tmp_path / "here").mkdir()
    (tmp_path / "link").symlink_to("real/b")  # leads nowhere yet
    monkeypatch.chdir(tmp_path / "here")
    for text, out in enumerate(("../link", "../link", "../real/../real/b", "../link/.")):
        put(Path(out), str(text))
        assert (tmp_path / "real" / "b" / "manifest.json").read_text() == str(text)
    assert (tmp_path / "link").is_symlink()
    assert sorted(os.listdir(tmp_path / "real")) == ["b"]  # noqa: PTH208
    assert sorted(path.name for path in tmp_path.iterdir()) == ["here", "link", "real"]
    put(Path("one"), "x")
    assert [path.name for path in Path().iterdir()] == ["one"]


def test_links_in_a_circle(tmp_path):
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    with pytest.raises(BringupError, match="BU012"):
        refuse(tmp_path / "a", force=True)


def test_a_folder_created_meanwhile_is_unchanged(tmp_path):
    with pytest.raises(BringupError, match="BU012"), writing(tmp_path / "b"):
        shutil.copytree(Path(__file__).parent, tmp_path / "b")
    assert [path.name for path in tmp_path.iterdir()] == ["b"]
    assert (tmp_path / "b" / Path(__file__).name).exists()


# --- weights that are not the program's


def test_every_weight_that_does_not_fit_is_reported(bundle, tmp_path):
    manifest = json.loads((bundle / "manifest.json").read_text())
    changed = manifest["interface"]["weights"]
    manifest["files"] = {}
    changed[0]["shape"] = [1, 2, 3]
    changed.append(changed[0] | {"name": "of.another"})
    for weight in changed[1:4]:
        weight["dtype"] = "float16"
    for name in ("weights.safetensors", "programs"):
        (tmp_path / name).symlink_to(bundle / name)
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(BringupError) as caught:
        bringup.load(tmp_path)
    assert [(f.code, f.parameter) for f in caught.value.findings] == [
        ("BU609", changed[0]["name"]),
        ("BU609", changed[1]["name"]),  # and two more: one fault
        ("BU609", "of.another"),
    ]
    said = f"the program expects `{changed[1]['name']}` and 2 more as float16, the weights have float32"
    assert caught.value.findings[1].message == said
    assert caught.value.exit_code == 1


@pytest.mark.parametrize("text", ["[]", "null", "{", '{"schema": 0}'])
def test_manifests_that_are_none(tmp_path, text):
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(BringupError, match="BU603"):
        bringup.load(tmp_path)
