"""A small GPT-2 compiled for torch, its record and its page; and a browser that renders the page."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from bringup.compile.job import Job, job_of, open_job
from bringup.compile.parity.parity import TOLERANCE, Difference, Layer, Parity
from bringup.compile.pipeline import build
from bringup.compile.report.record import Record, Recorder, record_of
from bringup.diagnostics import Diagnostic
from bringup.graphs.gpt2 import GPT2, GPT2Config
from bringup.graphs.layers.norm import LayerNorm
from bringup.render.html.page import page
from tests.cli.headers import gpt2_config, gpt2_shapes, write_checkpoint
from tests.report.browser import Browser, find, running

SMALL = {"layers": 3, "hidden": 128, "vocab": 96, "positions": 16}
DATE = datetime(2026, 11, 21, 8, 30, tzinfo=UTC)


class Listener:
    """A Progress that notes what it is told."""

    def __init__(self) -> None:
        self.heard: list[object] = []

    @contextmanager
    def stage(self, name: str):
        self.heard.append(name)
        yield self
        self.heard.append("end")

    def warn(self, finding: Diagnostic) -> None:
        self.heard.append(finding)

    def done(self, text: str) -> None:
        self.heard.append(text)

    def advance(self, fraction: float) -> None:
        self.heard.append(fraction)


def planned_record(job: Job, recorder: Recorder | None = None, **more: object) -> Record:
    """The record of a job of which nothing was compiled, unless `more` says otherwise."""
    facts = {"command": "bringup compile", "date": DATE, "target": "torch", "max_seq_len": None, "result": "planned"}
    return record_of(job, recorder or Recorder(Listener()), **(facts | more))


def parity(job: Job, worst: float = 1e-6) -> Parity:
    """A verification in which the errors grow from module to module, up to `worst`."""
    names = ["transformer.wte", *(f"transformer.h.{i}.{part}" for i in range(3) for part in ("ln_1", "attn", "mlp"))]
    errors = [worst * 0.5 ** (len(names) - 1 - index) for index in range(len(names))]
    return Parity(
        model="gpt2",
        target="torch",
        dtype="float32",
        reference="transformers",
        tolerance=TOLERANCE,
        differences=[Difference(phase="prefill", rows=8, relative=worst, excess=worst / TOLERANCE, wrong=0, exempt=1)],
        modules=[Layer(name=n, given=e / 2, output=e, alone=None) for n, e in zip(names, errors, strict=True)],
    )


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """In GPT-2's published layout, causal masks and all; every weight is zero."""
    folder = tmp_path_factory.mktemp("report") / "small"
    return open_job(checkpoint=str(write_checkpoint(folder, gpt2_shapes(**SMALL), gpt2_config(**SMALL))))


@pytest.fixture(scope="session")
def compiled(small: Job, tmp_path_factory: pytest.TempPathFactory) -> Record:
    """The record of a real compile, with a verification beside it."""
    recorder = Recorder(Listener())
    out = tmp_path_factory.mktemp("bundle") / "small.bundle"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BRINGUP_COMPILE_CACHE", str(out.parent / "compile-cache"))
        build(small, out=out, target="torch", buckets=(8,), progress=recorder)
    return planned_record(small, recorder, result="compiled", bundle=out, parity=parity(small))


@pytest.fixture(scope="session")
def written(compiled: Record, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its page."""
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(page(compiled), "utf-8")
    return path


HOSTILE = (
    "<script>window.caught=1</script>",
    '"><img src=x onerror=window.caught=1>',
    "</style></title></script><script>window.caught=1</script>",
    "'-->]]><svg onload=window.caught=1>",
    "a\u202eb\x00\x1b[31m\ud800",
)


@pytest.fixture(scope="session")
def hostile(small: Job, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a checkpoint whose names, files, source and provenance are attempts to act."""
    path = tmp_path_factory.mktemp("hostile") / "report.html"
    before = small.checkpoint
    files = [Path(name.replace("/", "")) for name in HOSTILE[:4]]
    headers = {n: i._replace(file=files[k % 4]) for k, (n, i) in enumerate(before.headers.items())}
    some = next(iter(headers.values()))
    headers |= {f"h.{k}.{name}": some._replace(name=f"h.{k}.{name}") for k, name in enumerate(HOSTILE)}
    provenance = dict.fromkeys(HOSTILE, HOSTILE[1])
    checkpoint = replace(before, headers=headers, source=HOSTILE[0], provenance=provenance)
    job = open_job(checkpoint=checkpoint)
    wrong = replace(parity(job), modules=[Layer(name=n, given=None, output=float("inf"), alone=0.1) for n in HOSTILE])
    path.write_text(page(planned_record(job, command=HOSTILE[0], result=HOSTILE[1], parity=wrong)), "utf-8")
    return path


@pytest.fixture(scope="session")
def hostile_graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a graph whose modules have such names."""
    path = tmp_path_factory.mktemp("hostile") / "graph.html"
    graph = GPT2(GPT2Config.from_hf(gpt2_config(**SMALL)))
    vars(graph.transformer).update({name: LayerNorm(8, 1e-5) for name in HOSTILE[:4]})
    weights = {name: np.ones(declared.storage[0], np.float32) for name, declared in graph.signature().items()}
    path.write_text(page(planned_record(job_of(graph, weights))), "utf-8")
    return path


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    command = find()
    if command is None and not os.environ.get("CI"):
        pytest.skip("there is no Chromium here: apt-get install chromium")
    assert command, "CI installs Chromium (.ci/run), and there is none"
    with running(command) as browser:
        yield browser
