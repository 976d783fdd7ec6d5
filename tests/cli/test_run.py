"""`bringup run`, `compile` and `verify`: what they ask of the library, and what they print."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bringup.cli.bundles import bundle_name
from bringup.diagnostics import Diagnostic, fail
from tests.cli.conftest import Bringup
from tests.runtime import exact

SPEEDS = {"prefill_tokens_per_s": 800.0, "decode_tokens_per_s": 31.64, "load_seconds": 0.12}


class FakeStream:
    """Holds every second piece back."""

    def __init__(self) -> None:
        self.held = ""

    def push(self, token: int) -> str:
        self.held += f" {token}"
        return self.finish() if token % 2 else ""

    def finish(self) -> str:
        held, self.held = self.held, ""
        return held


class FakeTokenizer:
    def __init__(self, eos: int = 7) -> None:
        self.eos = frozenset({eos})

    def encode(self, text: str) -> list[int]:
        return [len(text)]

    def stream(self, *, skip_special: bool) -> FakeStream:
        assert skip_special
        return FakeStream()


class FakeSession:
    executor, folder = None, Path("none")

    def __init__(self, weights: str, tokenizer: FakeTokenizer | None) -> None:
        self.manifest = {"weights": weights}
        self.stats = SimpleNamespace(**SPEEDS)
        self.found = tokenizer
        self.arguments: dict[str, Any] = {}

    def tokenizer(self) -> FakeTokenizer:
        if self.found is None:
            raise fail("BU014", "the bundle has no tokenizer")
        return self.found

    def generate(self, tokens: list[int], **settings: Any) -> Iterator[int]:
        self.arguments = {"tokens": tokens, **settings}
        yield from (1, 2, 3, 4)


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> FakeSession:
    fake = FakeSession("checkpoint", FakeTokenizer())
    monkeypatch.setattr("bringup.compile.runtime.session.load", lambda bundle, executor: fake)
    return fake


def test_text_goes_to_stdout_and_the_rest_to_stderr(bringup: Bringup, session: FakeSession) -> None:
    options = ("--seed", "3", "--temperature", "0.5", "--max-new-tokens", "4")
    result = bringup("run", "gpt2.bundle", "--prompt", "Hello", *options)
    assert (result.exit_code, result.stdout) == (0, " 1 2 3 4\n")
    assert "Loaded gpt2.bundle in " in result.stderr
    assert "Generated 4 tokens; prefill 800.0 tokens/s, decode 31.6 tokens/s\n" in result.stderr
    settings = {"max_new_tokens": 4, "temperature": 0.5, "top_p": 1.0, "top_k": 0, "seed": 3, "eos": frozenset({7})}
    assert session.arguments == {"tokens": [5], **settings}


def test_json(bringup: Bringup, session: FakeSession) -> None:
    found = json.loads(bringup("run", "b", "--tokens", "1, 2,3", "--json", "--max-new-tokens", "4").stdout)
    answer = {"tokens": [1, 2, 3, 4], "text": " 1 2 3 4", "reason": "length"}
    assert found == {**answer, **SPEEDS, "weights": "checkpoint"}
    assert session.arguments["tokens"] == [1, 2, 3]


@pytest.mark.parametrize(("ends", "most", "reason"), [(4, 4, "eos"), (7, 4, "length"), (7, 5, "context")])
def test_the_reason_why_an_answer_ends(
    bringup: Bringup, session: FakeSession, ends: int, most: int, reason: str
) -> None:
    """The generator has four tokens: with five requested, the context is full."""
    session.found = FakeTokenizer(ends)
    words = ("run", "b", "--tokens", "1", "--max-new-tokens", str(most))
    assert json.loads(bringup(*words, "--json").stdout)["reason"] == reason
    assert ("4 tokens, until the context was full; " in bringup(*words).stderr) == (reason == "context")


def test_dummy_weights_are_reported(bringup: Bringup, session: FakeSession) -> None:
    session.manifest["weights"] = "dummy"
    result = bringup("run", "b", "--tokens", "1", "--json")
    assert json.loads(result.stdout)["weights"] == "dummy"
    assert "note: random dummy weights" in result.stderr


def test_dummy_weights_are_reported_by_the_server(bringup: Bringup, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = exact.new_batch(3)
    batch.manifest = {**batch.manifest, "weights": "dummy"}
    monkeypatch.setattr("bringup.compile.serve.server.open_served", lambda *given: batch)
    monkeypatch.setattr("bringup.compile.serve.server.serve", lambda opening, **given: opening())
    result = bringup("serve", "b")
    assert (result.exit_code, result.stderr.count("note: random dummy weights")) == (0, 1), result.output


def test_without_a_tokenizer_ids_come_out(bringup: Bringup, session: FakeSession) -> None:
    session.found = None
    assert bringup("run", "b", "--tokens", "1").stdout.split() == ["1", "2", "3", "4"]
    assert json.loads(bringup("run", "b", "--tokens", "1", "--json").stdout)["text"] is None
    assert "BU014" in bringup("run", "b", "--prompt", "x").stderr


@pytest.mark.parametrize("words", [[], ["--prompt", "x", "--tokens", "1"], ["--tokens", "1,b"], ["--tokens", ""]])
def test_run_wants_one_prompt(bringup: Bringup, words: list[str]) -> None:
    assert bringup("run", "b", *words).exit_code == 2


@pytest.fixture
def build_arguments(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What `build` was called with."""
    seen: dict[str, Any] = {}

    def build(job: Any, *, progress: Any, **settings: Any) -> Path:
        with progress.stage("Checking") as stage:
            stage.done("41 parameters")
        seen.update(settings, job=job)
        return settings["out"]

    monkeypatch.setattr("bringup.compile.pipeline.build", build)
    return seen


def test_compile(bringup: Bringup, build_arguments: dict[str, Any]) -> None:
    result = bringup("compile", "gpt2", "--checkpoint", "dummy", "--max-seq-len", "64", "--target", "torch")
    assert (result.exit_code, result.stdout) == (0, "")
    first, second, last = result.stderr.splitlines()
    assert first == "note: random dummy weights, as requested"
    assert second.startswith("     Checked 41 parameters in ")
    assert last == "run it: bringup run gpt2.bundle --tokens 1,2,3"
    assert build_arguments.pop("job").checkpoint.is_dummy
    out = Path("gpt2.bundle")
    settings = {
        "target": "torch",
        "target_options": {},
        "weights_form": "auto",
        "max_seq_len": 64,
        "max_batch_size": 1,
        "cache_blocks": None,
        "max_input_len": None,
        "force": False,
        "emit": "bundle",
        "dump_dir": None,
        "aux_hidden": (),
        "draft_tokens": 0,
    }
    assert build_arguments == {"out": out, **settings}


def test_the_bundle_is_named_after_the_checkpoint(
    bringup: Bringup, build_arguments: dict[str, Any], small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = small.rename(small.with_name("Llama-3.2-1B"))
    monkeypatch.chdir(folder)
    for source, name in ((folder, "Llama-3.2-1B"), (".", "Llama-3.2-1B"), ("model.safetensors", "model")):
        assert bringup("compile", "--checkpoint", source, "--emit", "mlir").exit_code == 0
        assert build_arguments["out"] == Path(f"{name}.mlir")


@pytest.mark.parametrize(
    ("model", "checkpoint", "name"),
    [
        ("gpt2", "hf://org/other", "gpt2"),
        ("./my_model.py", None, "my_model"),
        (None, "hf://org/SmolLM2-1.7B@main", "SmolLM2-1.7B"),
        (None, "pypi:some-weights==1.0", "some-weights"),
        (None, "/x/q8_0.gguf", "q8_0"),
    ],
)
def test_names_of_bundles(model: str | None, checkpoint: str | None, name: str) -> None:
    assert bundle_name(model, checkpoint) == name


def test_emit_graph_and_plan_build_nothing(bringup: Bringup, build_arguments: dict[str, Any], small: Path) -> None:
    graph = bringup("compile", "--checkpoint", small, "--emit", "graph")
    assert len(json.loads(graph.stdout)) == 41
    plan = bringup("compile", "--checkpoint", small, "--emit", "plan").stdout.splitlines()
    assert len(plan) == 18
    row = "transformer.h.{0..2}.attn.c_attn.weight out:(t h d) in:m [384, 128] float32 transposed <- "
    assert f"{row}h.{{0..2}}.attn.c_attn.weight" in [" ".join(line.split()) for line in plan]
    assert plan[-1] == "dropped: h.{0..2}.attn.bias (causal-mask buffers)"
    assert not build_arguments


@pytest.mark.parametrize("phase", ["graph", "plan"])
def test_emit_writes_graph_and_plan_to_a_file(bringup: Bringup, small: Path, tmp_path: Path, phase: str) -> None:
    printed = bringup("compile", "--checkpoint", small, "--emit", phase).stdout
    result = bringup("compile", "--checkpoint", small, "--emit", phase, "-o", tmp_path / "text")
    assert (tmp_path / "text").read_text("utf-8") == printed
    assert (result.stdout, result.stderr) == ("", f"wrote {tmp_path / 'text'}\n")


def test_dry_run(bringup: Bringup, monkeypatch: pytest.MonkeyPatch) -> None:
    def dry_run(job: Any, target: str, max_seq_len: int | None, batch: int, options: Any, **more: Any) -> object:
        rows = [("target", target), ("context", str(max_seq_len)), ("batch", str(batch)), ("options", str(options))]
        return SimpleNamespace(rows=[*rows, ("more", str(more))])

    monkeypatch.setattr("bringup.compile.estimate.sizes.dry_run", dry_run)
    result = bringup("compile", "gpt2", "--checkpoint", "dummy", "--dry-run", "--target-option", "cpu=generic")
    rows = "target   cpu\ncontext  None\nbatch    1\noptions  {'cpu': 'generic'}\n"
    rows += "more     {'cache_blocks': None, 'weights_form': 'auto'}\n"
    assert result.stdout == rows


@pytest.mark.parametrize("ok", [True, False])
def test_verify(bringup: Bringup, monkeypatch: pytest.MonkeyPatch, ok: bool) -> None:
    from bringup.compile.parity.parity import Difference, Layer, Parity

    off = 1e-6 if ok else 0.5
    parity = Parity(model="gpt2", target="torch", dtype="float32", reference="mine 1", tolerance=2e-4, tokens=77)
    parity.differences.append(
        Difference(phase="prefill_64", rows=61, relative=off, excess=off / 2e-4, wrong=0, exempt=0)
    )
    parity.modules += [Layer(name=name, given=0.0, output=off, alone=off) for name in ("h.0", "h.0.attn")]
    if not ok:
        parity.findings.append(Diagnostic(code="BU701", message="the first module that departs is `h.0`"))
    arguments: dict[str, Any] = {}

    def verify(model: Any, checkpoint: str | None, **options: Any) -> Parity:
        arguments.update(options)
        return parity

    monkeypatch.setattr("bringup.compile.verify.command.verify", verify)
    result = bringup("verify", "gpt2", "--checkpoint", "dummy")
    assert result.exit_code == (0 if ok else 1)
    assert result.stdout.startswith("prefill_64  ")
    assert ("error[BU701]" in result.stdout) is not ok
    said = "agrees" if ok else "departs"
    last = f"gpt2: {said} on torch with mine 1 (77 tokens, float32, tolerance 0.0002)\n"
    assert result.stdout.endswith(last)
    assert (arguments["against"], arguments["target"], arguments["bisect"], arguments["save"]) == (
        "transformers",
        "torch",
        False,
        None,
    )
    bringup("verify", "gpt2", "--checkpoint", "dummy", "--bisect", "-o", "kept", "--against", "a.npz")
    assert (arguments["against"], arguments["target"], arguments["bisect"], arguments["save"]) == (
        "a.npz",
        "cpu",
        True,
        Path("kept"),
    )
    report = json.loads(bringup("verify", "gpt2", "--checkpoint", "dummy", "--json").stdout)
    assert (report["ok"], report["layers"]) == (ok, {"h.0": off, "h.0.attn": off})
