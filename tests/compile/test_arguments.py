"""Every public function, called with wrong words, types and values: a coded error, and no other."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import GPT2Config

import bringup
from bringup.compile.bundle.bundle_job import job_of_bundle
from bringup.compile.bundle.folder import read_manifest
from bringup.compile.job import Job
from bringup.compile.runtime.session import Session
from bringup.diagnostics import BringupError
from tests.cli.conftest import SMALL
from tests.cli.headers import gpt2_config, gpt2_shapes, write_checkpoint
from tests.models.parity import save_checkpoint

CONFIG = gpt2_config(**SMALL)
ODD: tuple[Any, ...] = (3, -1, 1.5, "x", "", b"x", [], ["x"], {"x": 1}, {1: "x"}, object(), True, float("nan"))


@pytest.fixture(scope="module")
def job() -> Job:
    return bringup.open_job(None, "dummy", config=CONFIG)


@pytest.fixture(scope="module")
def bundle(job: Job, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bringup.build(job, out=tmp_path_factory.mktemp("bundle") / "b", target="torch", buckets=(8,))


@pytest.fixture
def session(bundle: Path) -> Session:
    return bringup.load(bundle)


def tried(call: Callable[..., object], good: dict[str, Any], takes: dict[str, tuple[Any, ...]]) -> Iterator[str]:
    """What a call does with each odd value in each of its arguments; `takes` names those that it may accept."""
    for name, value in itertools.product(good, ODD):
        if any(value is other for other in takes.get(name, ())):
            continue
        try:
            call(**good | {name: value})
        except BringupError:
            continue
        except (KeyError, AttributeError, IndexError, AssertionError, RecursionError, TypeError, ValueError) as error:
            yield f"{name}={value!r}: {type(error).__name__}: {error}"
        else:
            yield f"{name}={value!r} is accepted"


def test_open_job() -> None:
    good = {"model": "gpt2", "checkpoint": "dummy", "config": CONFIG, "adapter": None, "dtype": "float32", "allow": {}}
    del good["adapter"]
    assert [*tried(bringup.open_job, good, {})] == []
    assert [*tried(bringup.open_job, {**good, "adapter": "none.py"}, {})] == []


def test_build(job: Job, tmp_path: Path) -> None:
    good = {"job": job, "out": tmp_path / "b", "target": "torch", "emit": "nothing", "buckets": (8,)}
    good |= {"max_seq_len": 8, "aux_hidden": (), "dump_dir": tmp_path / "dump", "weights": {}}
    assert [*tried(bringup.build, good, {})] == []
    assert [*tried(bringup.build, {**good, "job": job.graph}, {})] == []


def test_check_and_load(job: Job, bundle: Path) -> None:
    assert [*tried(bringup.check, {"job": job}, {})] == []
    assert [*tried(bringup.load, {"bundle": bundle, "executor": "local"}, {})] == []


@pytest.mark.slow
def test_verify(tmp_path: Path) -> None:
    """With a model that is there, so that a wrong argument alone stops it."""
    config = GPT2Config(vocab_size=67, n_positions=32, n_layer=1, n_head=2, n_embd=16)
    folder = save_checkpoint(config, tmp_path / "gpt2")
    good = {"model": "gpt2", "checkpoint": folder, "against": "transformers", "target": "torch", "dtype": "float32"}
    good |= {"prompt_tokens": 4, "decode_steps": 2, "max_seq_len": 16}
    assert bringup.verify(**good).ok
    accepted = {  # numbers are numbers
        "prompt_tokens=3", "prompt_tokens=True", "prompt_tokens={1: 'x'}", "decode_steps=3", "decode_steps=True",
    }  # fmt: skip
    assert {line.removesuffix(" is accepted") for line in tried(bringup.verify, good, {})} == accepted


def test_sessions(session: Session) -> None:
    def generate(**settings: Any) -> None:
        list(session.generate(**settings))
        session.reset()

    good = {"tokens": [1, 2], "max_new_tokens": 2, "temperature": 1.0, "top_p": 0.9, "seed": 3, "eos": frozenset()}
    found = [*tried(generate, good, {})]
    accepted = {  # numbers are numbers
        "max_new_tokens=3", "max_new_tokens=True", "temperature=3", "temperature=1.5", "temperature=True", "top_p=True",
        "seed=3", "seed=True", "eos=[]", "eos={1: 'x'}", "tokens={1: 'x'}",
    }  # fmt: skip
    assert {line.removesuffix(" is accepted") for line in found} == accepted
    found = [*tried(lambda tokens: session.prefill(tokens), {"tokens": [1]}, {})]
    assert found == ["tokens={1: 'x'} is accepted"]


def test_prompts_of_any_kind(session: Session) -> None:
    wanted = list(session.generate([3, 1, 4], max_new_tokens=3))
    prompts = (iter([3, 1, 4]), (3, 1, 4), np.array([3, 1, 4]), torch.tensor([3, 1, 4]), (t for t in [3, 1, 4]))
    for prompt in prompts:
        assert list(session.generate(prompt, max_new_tokens=3)) == wanted
    assert list(session.generate(iter([3, 1, 4]), max_new_tokens=3, resume=True)) == wanted
    session.reset()
    last = session.prefill(iter([3, 1, 4]))
    session.reset()
    assert np.array_equal(last, session.prefill([3, 1, 4]))
    assert list(session.generate([3], max_new_tokens=4, eos=wanted)) is not None
    assert list(session.generate([3, 1, 4], max_new_tokens=3, eos=[wanted[0]])) == wanted[:1]


@pytest.mark.parametrize(
    ("word", "hint"),
    [("fp16", "float16"), ("half", "float16"), ("bf16", "bfloat16"), ("fp32", "float32"), ("float23", "float32")],
)
def test_a_dtype_by_another_name(word: str, hint: str) -> None:
    """The same words in Python and at the command line."""
    from click.testing import CliRunner

    from bringup.cli.main import cli

    with pytest.raises(BringupError) as caught:
        bringup.open_job("gpt2", "dummy", dtype=word)
    (finding,) = caught.value.findings
    help = f"did you mean `{hint}`? valid values: auto, float32, bfloat16, float16"
    assert (finding.code, finding.message, finding.help) == ("BU024", f"invalid value `{word}` for `dtype`", help)
    result = CliRunner().invoke(cli, ["compile", "gpt2", "--checkpoint", "dummy", "--dtype", word])
    assert result.exit_code == 2
    assert f"error[BU024]: invalid value `{word}` for `--dtype`\n  = help: {help}" in result.stderr


def test_torchs_own_dtype_is_reported_with_its_name() -> None:
    with pytest.raises(BringupError, match="did you mean `float16`") as caught:
        bringup.open_job("gpt2", "dummy", dtype=torch.float16)  # type: ignore[arg-type]
    assert caught.value.findings[0].message == "invalid value torch.float16 for `dtype`"


def test_paths_serve_wherever_texts_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_checkpoint(tmp_path / "dummy", gpt2_shapes(**SMALL), CONFIG)
    root = Path(bringup.__file__).resolve().parents[1]
    named = {"config": folder / "config.json", "adapter": root / "adapters/gpt2.py"}
    jobs = [bringup.open_job("gpt2", kind(folder), **{k: kind(v) for k, v in named.items()}) for kind in (str, Path)]
    assert jobs[0].checkpoint.headers == jobs[1].checkpoint.headers
    assert jobs[0].checkpoint.provenance == jobs[1].checkpoint.provenance
    assert jobs[0].adapter_file == jobs[1].adapter_file
    monkeypatch.chdir(tmp_path)
    assert bringup.open_job("gpt2", Path("dummy")).checkpoint.format == "safetensors"  # and not the word
    assert bringup.open_job("gpt2", "dummy", config=CONFIG).checkpoint.format == "dummy"
    for kind in (str, Path):
        with pytest.raises(BringupError, match="BU034") as caught:
            bringup.open_job("gpt2", kind("dumy"))
        assert caught.value.exit_code == 2
        assert caught.value.findings[0].help == "did you mean `dummy`?"


def test_what_is_not_there_is_the_commands_fault(tmp_path: Path) -> None:
    """A model, a checkpoint, a config, an adapter, a bundle: exit code 2."""
    none = tmp_path / "none"
    calls: tuple[Callable[[], object], ...] = (
        lambda: bringup.open_job("nothing", "dummy"),
        lambda: bringup.open_job("nothing.py", "dummy"),
        lambda: bringup.open_job("gpt2", none),
        lambda: bringup.open_job("gpt2", "dummy", config=none),
        lambda: bringup.open_job("gpt2", "dummy", adapter=none),
        lambda: bringup.open_job("gpt2", ""),
        lambda: bringup.load(none),
    )
    for call in calls:
        with pytest.raises(BringupError) as caught:
            call()
        assert caught.value.exit_code == 2, caught.value


def test_weights_take_the_place_of_a_jobs_checkpoint(job: Job, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    weights = {
        name: rng.normal(0, 0.02, declared.storage[0]).astype(np.float32)
        for name, declared in job.graph.signature().items()
    }
    bundles = [
        bringup.load(bringup.build(what, out=tmp_path / name, weights=given, target="torch", buckets=(8,)))
        for name, what, given in (("a", job, weights), ("b", job.graph, weights), ("c", job, None))
    ]
    ours, graphs, own = (session.prefill([1, 2, 3]) for session in bundles)
    assert np.array_equal(ours, graphs)
    assert not np.allclose(ours, own)
    assert bundles[0].manifest["weights"] == "checkpoint"
    assert bundles[0].manifest["config"] == bundles[2].manifest["config"]
    with pytest.raises(BringupError, match="BU005"):
        job_of_bundle(bundles[0].manifest, None)
    first = next(iter(weights))
    cut, more = {**weights, first: weights[first][:1]}, {**weights, "extra": ours}
    for wrong, said in (({}, "BU"), (cut, first), (more, "extra")):
        with pytest.raises(BringupError, match=said):
            bringup.build(job, out=tmp_path / "d", weights=wrong, target="torch", buckets=(8,))
    assert not (tmp_path / "d").exists()


class Odd:
    """Something with a shape and a dtype that is no array."""

    shape, dtype = (2, 2), np.dtype("float32")


def _sparse() -> Any:
    return torch.eye(2).to_sparse()


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (_sparse(), r"layout sparse_coo; pass `tensor.to_dense\(\)`"),
        (np.ma.masked_array(np.ones((2, 2), np.float32), [[0, 1], [0, 0]]), "masked array"),
        (torch.empty(2, 2, device="meta"), "meta device"),
        (Odd(), "float"),
        ([1.0], "a list, neither"),
    ],
    ids=["coo", "masked", "meta", "odd", "list"],
)
def test_weights_that_are_no_arrays(value: Any, said: str) -> None:
    from bringup.adapters.checkpoints.memory import dict_checkpoint

    def read() -> None:
        checkpoint = dict_checkpoint({"w": value}, {})
        checkpoint.read(checkpoint.headers["w"])

    with pytest.raises(BringupError, match=f"BU241: weight `w` .*{said}"):
        read()


@pytest.mark.parametrize("key", ["dtype", "model_argument", "adapter", "path", "revision", "source"])
@pytest.mark.parametrize("value", ["fp16", "", 7, True, ["x"], {"x": 1}])
def test_an_edited_manifest_is_reported_by_verify(bundle: Path, tmp_path: Path, key: str, value: object) -> None:
    """The job that a verification opens from it; only the provenance of dummy weights may say anything else."""
    manifest = json.loads((bundle / "manifest.json").read_text("utf-8"))
    place = manifest["provenance"] if key in ("path", "revision", "source") else manifest
    place[key] = value or ("nothing" if key == "model_argument" else value)  # without one the family's name serves
    if key in ("path", "revision"):
        manifest["provenance"]["source"] = "folder"
    edited = Path(shutil.copytree(bundle, tmp_path / "b"))
    (edited / "manifest.json").write_text(json.dumps(manifest), "utf-8")
    with pytest.raises(BringupError) as caught:
        job_of_bundle(read_manifest(edited), None)
    words = {"BU002": "BRINGUP_MODELS", "BU034": "if it has moved"}
    first = caught.value.findings[0]
    assert words.get(first.code, "") in first.help
