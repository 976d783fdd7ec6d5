"""`bringup bench`: figures next to numpy's, tokens next to transformers', and what is refused. No speed is asserted."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from safetensors import safe_open

from bringup.cli.launches.bench import PEERS as OFFERED
from bringup.cli.launches.bench import fitting
from bringup.cli.main import cli
from bringup.compile.bench.bandwidth import Probe
from bringup.compile.bench.bench import check_shape
from bringup.compile.bench.contenders import LLAMA_CPP, PEERS, TORCH_COMPILE, TRANSFORMERS, Bundle, opened
from bringup.compile.bench.timing import Row, Shape, Timing, Turn, percentiles
from bringup.compile.bundle.folder import read_manifest
from bringup.compile.pipeline import build
from bringup.diagnostics import BringupError
from tests.bench import llama_double
from tests.schedule.models import CONTEXT, PREFILL, VOCAB, job_of

PROMPTS = np.random.default_rng(3).integers(0, VOCAB, (2, 9)).tolist()


@pytest.fixture(scope="module")
def bundle(tmp_path_factory) -> Path:
    """Tiny GPT-2 in float32, for two sequences."""
    folder = tmp_path_factory.mktemp("bench")
    settings = {"max_seq_len": CONTEXT, "buckets": (PREFILL,), "max_batch_size": 2}
    return build(job_of("gpt2", folder), out=folder / "b", target="llvm", **settings)


def bench(*words: str | Path) -> Result:
    return CliRunner().invoke(cli, ["bench", *map(str, words)])


def test_percentiles() -> None:
    """numpy's `inverted_cdf` is the same definition."""
    random = np.random.default_rng(0)
    for count in (1, 2, 9, 10, 99, 100, 101, 1000):
        values = random.random(count)
        wanted = {f"p{p}": 1e3 * np.percentile(values, p, method="inverted_cdf") for p in (50, 90, 99)}
        assert percentiles(values) == wanted
    assert percentiles(()) == {}


def test_figures_of_a_row() -> None:
    """Two sequences of three tokens, by hand: gaps 1, 3, 2 and 2 s; a step reads 8 bytes at 4 bytes a second."""
    timing = Timing([[1, 2, 3], [4, 5, 6]], [[2.0, 3.0, 6.0], [4.0, 6.0, 8.0]], [6.0, 8.0, 12.0])
    slower = Timing([[1, 2, 3], [4, 7, 6]], [[6.0, 10.0, 14.0], [6.0, 10.0, 16.0]], [6.0, 11.0, 18.0])
    row = Row("own", Shape(2, 9, 3), [Turn(timing, 4.0)], 8)
    peer = Row("peer", Shape(2, 9, 3), [Turn(slower, 4.0)], None)
    figures = row.figures()
    assert (figures["ttft_ms"]["p50"], figures["itl_ms"]["p50"], figures["itl_ms"]["p99"]) == (2000, 2000, 3000)
    assert (figures["tokens_per_s"], figures["processor_ms_per_token"]) == (6 / 8, 2000)
    assert figures["bandwidth_share"] == 8 / 2 / 4
    assert row.ratios(peer) == {"ttft": 2.0, "itl": 2.0, "tokens_per_s": 2.0, "step": 2.0, "processor": 1.5}
    assert (row.equal_tokens(peer), row.equal_tokens(row)) == (1, 3)
    assert peer.figures()["bandwidth_share"] is None


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.parametrize("name", [TRANSFORMERS, pytest.param(TORCH_COMPILE, marks=pytest.mark.slow)])
def test_contenders_generate_the_same_tokens(bundle: Path, name: str) -> None:
    runs = [Bundle(str(bundle)), opened(name, {"bundle": str(bundle), "threads": 1})]
    own, peer = (contender.run(PROMPTS, 20) for contender in runs)
    assert own.tokens == peer.tokens
    assert runs[1].run(PROMPTS, 1).tokens == [row[:1] for row in own.tokens]
    for timing in (own, peer):
        assert [len(each) for each in timing.times] == [20, 20]
        assert min(timing.gaps) > 0
        assert timing.seconds >= max(timing.first)
        assert timing.processor > 0
    assert {contender.dtype for contender in runs} == {"float32"}


def test_the_command(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bringup.compile.bench.bench.Probe", lambda threads: Probe(threads, 1 << 20))
    words = ("--batch", "1,2", "--input", "5,40", "--output", "3", "--rounds", "2", "--warmup", "0")
    result = bench(bundle, *words, "--json", "--threads", "1")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert [(row["batch"], row["input"], row["output"]) for row in found["rows"]] == [
        (1, 5, 3), (1, 40, 3), (2, 5, 3), (2, 40, 3),
    ]  # fmt: skip
    assert all(row["ttft_ms"]["p50"] > 0 and row["bandwidth_share"] > 0 for row in found["rows"])
    with safe_open(bundle / "weights.safetensors", "numpy") as file:
        sizes = {name: file.get_tensor(name).nbytes for name in file.keys()}  # noqa: SIM118
    assert found["weight_bytes"] == sum(size for name, size in sizes.items() if "wpe" not in name)
    (own,) = found["contenders"]
    assert (own["name"], own["dtype"], found["threads"]) == ("bringup llvm", "float32", 1)
    assert own["peak_bytes"] > sum(sizes.values())


def test_a_batch_without_room_is_one_note(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """For any number of prompt lengths."""
    small, *large = (Shape(batch, taken, 2) for batch, taken in ((1, 5), (3, 5), (3, 6)))
    assert fitting(bundle, [small, *large]) == [small]
    assert capsys.readouterr().err == "note: a batch of 3 does not fit the bundle, which supports 2 at a time\n"


def test_a_prompt_longer_than_the_longest_of_the_bundle(bundle: Path) -> None:
    manifest = read_manifest(bundle) | {"max_input_len": 5}
    check_shape(manifest, Shape(1, 5, 4))
    with pytest.raises(BringupError, match=r"BU024: 6 tokens do not fit .* 5") as caught:
        check_shape(manifest, Shape(1, 6, 1))
    assert caught.value.findings[0].help == "compile it with --max-input-len 6"


def test_shapes_without_room(bundle: Path) -> None:
    """Of the usual shapes those that fit are timed; a shape that an option asks for is an error."""
    result = bench(bundle, "--batch", "3", "--input", "5")
    assert (result.exit_code, "error[BU024]: a batch of 3" in result.stderr) == (2, True), result.output
    assert "compile it with --max-batch-size 3" in result.stderr
    result = bench(bundle)
    assert (result.exit_code, "error[BU024]: 32 tokens and 128 new" in result.stderr) == (2, True), result.output
    assert bench(bundle, "--input", "0").exit_code == 2


@pytest.mark.slow
def test_a_model_with_a_short_context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shapes that the model's positions do not hold are left out, unless --input requests them or none is left."""
    source = job_of("gpt2", tmp_path).checkpoint.source
    positions = json.loads(Path(source, "config.json").read_text("utf-8"))["n_positions"]
    monkeypatch.setattr("bringup.cli.launches.bench.INPUTS", (8, positions))
    monkeypatch.setattr("bringup.cli.launches.bench.BATCHES", (1,))
    words = ("gpt2", "--checkpoint", source, "--rounds", 1, "--warmup", 0, "--output", 2)
    result = bench(*words, "--json")
    assert f"note: {positions} tokens and 2 new ones do not fit the bundle's context of {positions}" in result.stderr
    assert [row["input"] for row in json.loads(result.stdout)["rows"]] == [8]
    refused = bench(*words, "--input", positions)
    assert refused.exit_code == 2
    assert f"{positions} tokens and 2 new ones do not fit the model's context of {positions}" in refused.stderr
    assert "--input N --output N" in refused.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--threads", "1000000"), "error[BU024]: 1,000,000 processors are requested"),
        (("--gguf", "a.gguf"), "error[BU023]: --gguf is the file of llama.cpp, which is not measured"),
        (("--config", "a.json"), "is a bundle: it has its own config"),
        (("--adapter", "a.py"), "is a bundle: it has its own config"),
        (("--batch", "0"), "`0` is not a list of positive integers"),
    ],
)
def test_options_without_effect_are_refused(bundle: Path, words: tuple[str, ...], said: str) -> None:
    result = bench(bundle, "--input", "2", "--output", "2", "--batch", "1", "--rounds", "1", *words)
    assert (result.exit_code, said in result.stderr) == (2, True), result.output


def test_a_shape_that_is_named_twice_is_measured_once(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second time would be compared with the first, as if it were another engine."""
    monkeypatch.setattr("bringup.compile.bench.bench.Probe", lambda threads: Probe(threads, 1 << 20))
    words = ("--input", "2,2", "--output", "2", "--batch", "1,1", "--rounds", "1", "--warmup", "0", "--threads", "1")
    result = bench(bundle, *words, "--json")
    assert result.exit_code == 0, result.output
    (row,) = json.loads(result.stdout)["rows"]
    assert (row["batch"], row["input"]) == (1, 2)


def test_other_engines_need_their_files(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = bench(bundle, "--input", "5", "--output", "2", "--batch", "1", "--against", LLAMA_CPP)
    assert (result.exit_code, "error[BU703]: llama.cpp reads GGUF files only" in result.stderr) == (1, True), (
        result.output
    )
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    settings = {"bundle": "", "gguf": "a.gguf", "batch": 1, "length": 1, "threads": 1}
    with pytest.raises(BringupError) as error:
        opened(LLAMA_CPP, settings)
    (finding,) = error.value.findings
    assert finding.code == "BU922"
    assert "pip install xllamacpp" in finding.help


def test_llama_cpp_takes_in_every_token_of_its_sequence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llama_cpp", llama_double)
    settings = {"bundle": "", "batch": 3, "length": 12, "threads": 1}
    engine = opened(LLAMA_CPP, {**settings, "gguf": "a.gguf"})
    prompts = [[1, 2, 3], [3, 2, 1], [7, 7, 7]]
    for _ in range(2):  # nothing stays of an earlier run
        timing = engine.run(prompts, 6)
        for prompt, tokens in zip(prompts, timing.tokens, strict=True):
            known = list(prompt)
            for token in tokens:
                assert token == llama_double.following(known)
                known.append(token)
    assert engine.dtype == "double F32"
    with pytest.raises(BringupError, match="does not open"):
        opened(LLAMA_CPP, {**settings, "gguf": "missing.gguf"})


def test_the_probe_reads_memory() -> None:
    assert Probe(2, 1 << 20).bytes_per_second() > 0


def test_the_command_offers_every_engine() -> None:
    assert sorted(OFFERED) == sorted(PEERS)
