"""The launches of known models, their bytes, and what happens where the plan is wrong."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from bringup.compile.job import Job
from bringup.compile.pipeline import build
from bringup.compile.program.program import Interface
from bringup.compile.program.step_inputs import sequence_step
from bringup.compile.program.torch_arrays import to_numpy
from bringup.compile.runtime.session import Session, load
from bringup.compile.schedule.codec import schedule_from_json, schedule_to_json
from bringup.compile.schedule.costs import cost_of, total
from bringup.compile.schedule.floors import devices_of
from bringup.compile.schedule.pass_list import PASSES, REUSE
from bringup.compile.schedule.reference import ReferenceExecutor
from bringup.compile.schedule.schedule import Schedule
from bringup.compile.schedule.text import text_of
from bringup.diagnostics import BringupError
from bringup.spec import DTYPES
from tests.models import parity
from tests.schedule.models import CONFIGS, CONTEXT, PREFILL, VOCAB, job_of, schedule_of, scheduled

LAYERS = {
    "gpt2": [
        "layer_norm+linear+write_cache*2",
        "attention",
        "linear+add",
        "layer_norm+linear+gelu_tanh",
        "linear+add",
    ],
    "llama": [
        "rms_norm+linear+rope*2+write_cache*2",
        "attention",
        "linear+add",
        "rms_norm+linear+silu+mul",
        "linear+add",
    ],
}


@pytest.fixture(scope="module")
def bundles(tmp_path_factory) -> dict[str, Path]:
    folders = {name: tmp_path_factory.mktemp(name) for name in CONFIGS}
    return {name: scheduled(job_of(name, folder), folder / "b") for name, folder in folders.items()}


@pytest.fixture(scope="module")
def without(tmp_path_factory) -> Callable[[str, str], Path]:
    """The bundle of a model with a pass left out, built once."""

    @cache
    def checkpoint(name: str) -> Job:
        return job_of(name, tmp_path_factory.mktemp(name))

    @cache
    def built(name: str, left_out: str) -> Path:
        out = tmp_path_factory.mktemp("without") / "b"
        return scheduled(checkpoint(name), out, target_options={"passes": f"-{left_out}"})

    return built


def interface_of(bundle: Path) -> Interface:
    return load(bundle).interface


@pytest.mark.parametrize("name", LAYERS)
def test_a_decode_step_has_five_launches_a_layer_and_two(name: str, bundles) -> None:
    schedule = schedule_of(bundles[name])
    launches = list(schedule.launches("decode"))
    assert [launch.group.name for launch in launches[1:6]] == LAYERS[name]
    assert len(launches) == 5 * 2 + 2


def test_each_launch_of_prefill_norms_once(bundles) -> None:
    """Where many rows are normed, the norm is a launch of its own."""
    names = [launch.group.name for launch in schedule_of(bundles["llama"]).launches(f"prefill_{PREFILL}")]
    assert names[1:3] == ["rms_norm", "linear+rope*2+write_cache*2"]


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_bytes_are_those_that_must_be_read(name: str, bundles) -> None:
    """Of decode: every weight once, but of tables the rows of one token; every key and value of the context."""
    interface, schedule = interface_of(bundles[name]), schedule_of(bundles[name])
    costs = total(cost_of(launch.graph, launch.group, CONTEXT) for launch in schedule.launches("decode"))
    sizes = {spec.name: DTYPES[spec.dtype].nbytes(spec.shape) for spec in interface.weights}
    tables = {
        spec.name: spec.shape[0]
        for spec in interface.weights
        if spec.name.rpartition(".")[0].endswith(("wte", "wpe", "embed_tokens", "rotary"))
    }
    must = sum(nbytes // tables.get(name, 1) for name, nbytes in sizes.items())
    cache = sum(DTYPES[s.dtype].nbytes(s.shape) // s.shape[0] * CONTEXT for s in interface.states)
    assert costs.weights == pytest.approx(must, rel=0.03)
    assert costs.cache == pytest.approx(cache, rel=0.03)
    assert costs.weights + costs.cache == pytest.approx(costs.nbytes, rel=0.25)  # tiny: activations are a large part


def test_operations_are_those_of_its_products(bundles) -> None:
    """2 for each weight of a matrix and row, and 4 for each channel of a query and key."""
    schedule = schedule_of(bundles["gpt2"])
    costs = total(cost_of(launch.graph, launch.group, CONTEXT) for launch in schedule.launches("decode"))
    d, layers = 24, 2
    products = 2 * (layers * 12 * d * d + VOCAB * d)
    attention = layers * 4 * d * CONTEXT
    assert costs.flops == pytest.approx(products + attention, rel=0.05)


def test_a_window_bounds_the_keys_that_are_counted(bundles) -> None:
    """Query by query: gpt-oss has a layer with a window of 17 and one without."""
    launches = schedule_of(bundles["gpt_oss"]).launches(f"prefill_{PREFILL}")
    found = [cost_of(each.graph, each.group, PREFILL).flops for each in launches if each.group.name == "attention"]
    heads, channels = 4, 8 + 8
    seen = [sum(min(at + 1, window) for at in range(PREFILL)) for window in (17, PREFILL)]
    assert found == [2 * heads * channels * each for each in seen]


@pytest.mark.parametrize("left_out", [each.name for each in PASSES] + [REUSE])
@pytest.mark.parametrize("name", ["llama", "gpt_oss"])
def test_a_pass_left_out_changes_no_token(name: str, left_out: str, bundles, without) -> None:
    other = without(name, left_out)
    prompt = parity.random_tokens(PREFILL + 3, VOCAB)
    texts = [list(load(bundle).generate(prompt, max_new_tokens=8)) for bundle in (bundles[name], other)]
    assert texts[0] == texts[1]
    whole, without = (sum(1 for _ in schedule_of(b).launches("decode")) for b in (bundles[name], other))
    if left_out == REUSE:
        assert schedule_of(other).nbytes > schedule_of(bundles[name]).nbytes
    else:
        assert without >= whole


def test_every_pass_matters_to_some_model(bundles, without) -> None:
    missing = {
        each.name for each in PASSES if "fp8" not in each.name
    }  # tests/quantised/test_fp8_activations.py has those
    for name in ("llama", "gpt_oss", "gpt2"):  # those first whose bundles the test before has
        whole = sum(1 for _ in schedule_of(bundles[name]).launches("decode"))
        for left_out in sorted(missing):
            if sum(1 for _ in schedule_of(without(name, left_out)).launches("decode")) > whole:
                missing.remove(left_out)
    assert not missing


def test_memory_that_is_given_twice_shows(bundles) -> None:
    """Two temporaries at one place, both alive: the logits are not those of the right plan."""
    bundle = bundles["llama"]
    session = load(bundle)
    schedule = schedule_of(bundle)
    prompt = parity.random_tokens(PREFILL, VOCAB)
    right = session.prefill(prompt)
    spoilt = 0
    places = {offset for call in schedule.entries[f"prefill_{PREFILL}"].calls for offset in call.places.values()}
    for place in sorted(places)[1:]:
        data = schedule_to_json(schedule)
        for call in data["entries"][0]["calls"]:
            call["places"] = {name: 0 if offset == place else offset for name, offset in call["places"].items()}
        spoilt += not np.array_equal(_prefill(schedule_from_json(data), session, prompt), right)
    assert spoilt


def _prefill(schedule: Schedule, session: Session, prompt: list[int]) -> np.ndarray:
    weights = {name: to_numpy(tensor) for name, tensor in session.executor._weights.items()}
    executor = ReferenceExecutor(schedule, session.interface, weights)
    return executor.step(f"prefill_{PREFILL}", sequence_step(prompt, 0, PREFILL, CONTEXT))["logits"]


def test_json_is_the_same_schedule(bundles) -> None:
    for bundle in bundles.values():
        schedule = schedule_of(bundle)
        again = schedule_from_json(json.loads(json.dumps(schedule_to_json(schedule))))
        assert again == schedule


NODE = ("graphs", 1, "groups", 0, 0)
CALL = ("entries", 0, "calls", 1)
SPOILT: dict[str, tuple[tuple[str | int, ...], object]] = {
    "temporaries without places": ((*CALL, "places"), {}),
    "a view beyond its buffer": ((*NODE, 1, 0, 1, "view", 3), 10**9),
    "an operator of another library": ((*NODE, 0), "profiler._record_function_enter.default"),
    "an operator that writes a file": ((*NODE, 0), "aten.from_file.default"),
    "an op that there is not": ((*NODE, 0), "bringup.nothing.default"),
    "an arena without end": (("entries", 0, "nbytes"), 10**15),
    "a buffer of a negative size": (("graphs", 0, "buffers", 0, 1, 0), -5),
    "a kind that there is not": (("graphs", 0, "buffers", 0, 3), "secret"),
    "a call of no function": ((*CALL, "function"), "other"),
    "a weight of another layer": ((*CALL, "prefix"), "model.layers.9."),
    "a value of a later call": ((*CALL, "values", "value:0"), [5, "%add"]),
    "a call without its values": ((*CALL, "values"), {}),
    "no entries": (("entries",), []),
    "null": (("entries",), None),
}


@pytest.mark.parametrize("change", SPOILT)
def test_a_spoilt_file_is_no_bundle(change: str, bundles, tmp_path: Path) -> None:
    """One diagnostic before anything runs."""
    folder = tmp_path / "b"
    shutil.copytree(bundles["llama"], folder)
    file = folder / "schedule.json"
    data = json.loads(file.read_text("utf-8"))
    (*where, last), value = SPOILT[change]
    part = data
    for key in where:
        part = part[key]
    part[last] = value
    file.write_text(json.dumps(data), "utf-8")
    with pytest.raises(BringupError) as raised:
        load(folder)
    assert [found.code for found in raised.value.findings] == ["BU603"]


def test_it_is_printed(tmp_path: Path) -> None:
    job = job_of("gpt2", tmp_path)
    out, dumps = tmp_path / "s.txt", tmp_path / "dumps"
    build(job, out=out, target="schedule", max_seq_len=CONTEXT, buckets=(PREFILL,), emit="schedule", dump_dir=dumps)
    text = out.read_text("utf-8")
    assert "# decode: 1 tokens of 1 sequence, 128 keys each\n# 12 launches, read and written in bytes;" in text
    assert "transformer.h.1: layer_norm+linear+gelu_tanh -> %gelu_tanh@" in text
    steps = ("00-before", "09-fuse-norms")
    before, after = ((dumps / f"2-schedule.decode.layer0.{name}.txt").read_text("utf-8") for name in steps)
    assert before.count("\ngroup ") == 12
    assert after.count("\ngroup ") == 5
    first = "%layer_norm float32[1, 24] = bringup.layer_norm.default(x=value:0"
    assert f"group layer_norm+linear+write_cache*2\n  {first}" in after


def test_the_least_times_on_gpus(bundles) -> None:
    """A column for each GPU of an architecture: the bytes of a launch over the bandwidth of its data sheet."""
    text = text_of(schedule_of(bundles["gpt2"]), interface_of(bundles["gpt2"]), devices_of("sm_90"))
    head, *lines = text[text.index("# decode:") :].splitlines()[2:]
    assert head.split()[-6:] == ["MFLOP", "h100", "us", "h200", "us", "launch"]
    for line in lines[:12]:
        words = line.replace(",", "").split()
        nbytes = sum(map(int, words[1:5]))  # of weights, cache and others, and those written
        assert [float(word) for word in words[6:8]] == [round(nbytes / rate, 2) for rate in (3350e3, 4800e3)]
    assert text.startswith("# h100: 3,350 GB/s (NVIDIA H100 data sheet, SXM)\n# h200: 4,800 GB/s (")


def test_a_pass_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(BringupError, match="fuse-norm") as raised:
        scheduled(job_of("gpt2", tmp_path), tmp_path / "b", target_options={"passes": "-fuse-nrms"})
    assert [found.code for found in raised.value.findings] == ["BU024"]
