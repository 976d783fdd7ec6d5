"""What stands on the page, read without a browser."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from bringup.compile.job import Job, open_job
from bringup.compile.report.record import Record, StageResult
from bringup.render.html.page import page
from bringup.render.visible import visible
from bringup.render.words import size
from tests.report.conftest import HOSTILE, SMALL, Listener, parity, planned_record
from tests.report.test_tags import Seen

LLAMA_405B = {
    "architectures": ["LlamaForCausalLM"], "hidden_size": 16384, "intermediate_size": 53248,
    "num_hidden_layers": 126, "num_attention_heads": 128, "num_key_value_heads": 8, "vocab_size": 128256,
    "max_position_embeddings": 131072, "tie_word_embeddings": False,
}  # fmt: skip
VOID = {"br", "meta"}


class Nesting(HTMLParser):
    """Fails on an element that is not closed where it should be."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.open += [] if tag in VOID else [tag]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture
def text(written: Path) -> str:
    return written.read_text("utf-8")


def words(page: str) -> str:
    return " ".join(" ".join(Seen(re.sub(r"(?s)<(style|script)>.*?</\1>", "", page)).texts).split())


def test_every_element_is_closed(text: str, hostile: Path, hostile_graph: Path):
    for source in (text, hostile.read_text("utf-8"), hostile_graph.read_text("utf-8")):
        nesting = Nesting()
        nesting.feed(source)
        assert nesting.open == []


def test_nothing_comes_from_elsewhere(text: str):
    seen = Seen(text)
    for name, attributes in seen.elements:
        assert not attributes.keys() & {"src", "srcset", "style", "action"}, name
        assert (attributes.get("href") or "#").startswith("#")
        assert not any(key.startswith("on") for key in attributes)
    policy = next(a["content"] for n, a in seen.elements if n == "meta" and "http-equiv" in a)
    assert "default-src 'none'" in policy
    for kind in ("style", "script"):
        inline = re.findall(rf"(?s)<{kind}>(.*?)</{kind}>", text)
        digest = base64.b64encode(hashlib.sha256(inline[0].encode()).digest()).decode()
        assert len(inline) == 1
        assert f"{kind}-src 'sha256-{digest}'" in policy
        assert not re.search(r"url\(|@import|fetch\(|https?:|XMLHttpRequest|WebSocket", inline[0])


def test_equal_records_give_equal_pages_but_for_times(compiled: Record):
    slower = [StageResult(s.name, s.start * 2, Listener(), s.seconds * 3, s.result) for s in compiled.stages]
    later = replace(compiled, date=compiled.date.replace(year=2027), seconds=99.0, stages=slower)
    assert page(compiled) == page(compiled)
    times = re.compile(r"(?s)<time.*?</time>|<ol class=\"waterfall\">.*?</ol>|; the longest stage is \w+")
    assert page(later) != page(compiled)
    assert times.sub("", page(later)) == times.sub("", page(compiled))


def test_every_parameter_tensor_file_and_drop_is_reported(compiled: Record, text: str):
    said, plan = words(text), compiled.job.plan
    for name, entry in plan.entries.items():
        assert name in said
        assert all(info.name in said and info.file and info.file.name in said for info in entry.tensors)
        assert str(entry.rule.site) in said
    assert "h.{0..2}.attn.bias" in said
    assert "causal-mask buffers" in said
    assert f"{len(plan.entries)} parameters computed from {len(plan.headers)} tensors" in said
    assert "tied: stored once" in said
    assert "square" in said


def test_figures_are_those_of_the_checkpoint(compiled: Record, text: str):
    m, vocab, positions, layers = SMALL["hidden"], SMALL["vocab"], SMALL["positions"], SMALL["layers"]
    layer = 4 * (12 * m * m + 13 * m)
    whole = layers * layer + 4 * ((vocab + positions) * m + 2 * m)
    said = words(text)
    assert f"{layers} \N{MULTIPLICATION SIGN} {size(layer)}" in said
    assert f"{size(whole)} of weights" in said
    assert f"{size(2 * 4 * m * layers)} a token" in said
    assert f"cache for {positions} tokens" in said


def test_the_cache_of_the_longest_context_is_that_of_every_position(compiled: Record, text: str):
    positions = SMALL["positions"]
    each = 2 * 4 * SMALL["hidden"] * SMALL["layers"]
    shorter = words(page(replace(compiled, context=positions // 2)))
    longest = f"for all {positions} positions of the model"
    assert (
        f"{size(each * (positions // 2))} for the {positions // 2} tokens chosen, {size(each * positions)} {longest}"
        in shorter
    )
    assert longest not in words(text), "the context is the longest"


def test_findings_stand_first_with_their_lines(compiled: Record, small: Job):
    said = words(page(compiled))
    assert "warning BU134" in said
    shapes = dict(small.checkpoint.headers)
    shapes["extra"] = next(iter(shapes.values()))._replace(name="extra")
    broken = words(page(planned_record(open_job(checkpoint=replace(small.checkpoint, headers=shapes)))))
    assert "1 error" in broken
    assert "no rule reads the tensor extra" in broken
    assert broken.index("BU105") < broken.rindex("Where each parameter came from")


def test_errors_by_module(small: Job):
    near, far = (words(page(planned_record(small, parity=parity(small, worst)))) for worst in (1e-6, 1e-2))
    assert "All are within the tolerance" in near
    first = "transformer.h.1.ln_1"  # five modules from the last: 1e-2 / 2^5 > 2e-4 > 1e-2 / 2^6
    assert f"The first beyond the tolerance is {first}." in far
    assert "transformer.h.2.mlp feed-forward 5.0e-03 1.0e-02" in far


def test_hostile_words_stay_words(hostile: Path):
    seen = Seen(hostile.read_text("utf-8"))
    names = [name for name, _ in seen.elements]
    assert names.count("script") == 1
    assert not {"img", "iframe", "object"} & set(names)
    assert all(visible(name) in " ".join(seen.texts) for name in HOSTILE)
    assert "\u202e" not in hostile.read_text("utf-8")


def test_llama_405b_is_small_enough():
    job = open_job("llama", "dummy", config=LLAMA_405B, dtype="bfloat16")
    files = [Path(f"model-{k:05}-of-00191.safetensors") for k in range(1, 192)]
    headers = {n: i._replace(file=files[k % 191]) for k, (n, i) in enumerate(job.checkpoint.headers.items())}
    job = open_job("llama", replace(job.checkpoint, headers=headers), dtype="bfloat16")
    html = page(planned_record(job))
    assert len(html.encode()) < 2_000_000
    assert "811.7 GB" in html
    assert "model.layers.{0..125}.mlp.down_proj.weight" in html
    assert all(file.name in html for file in files)
