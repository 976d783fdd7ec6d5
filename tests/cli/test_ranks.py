"""`check --tp N`: what may be replicated, how many ranks there can be, and what each holds."""

from __future__ import annotations

import math
import time
from typing import Any

import click
import pytest

from bringup.adapters.apply.parallel import Parallel
from bringup.adapters.checkpoints.memory import dict_checkpoint
from bringup.cli.main import cli
from bringup.cli.parameters.ranks import any_ranks
from bringup.compile.check.ranks import divide
from bringup.compile.job import Job, open_job
from bringup.compile.packed_job import packed_shares
from bringup.diagnostics import Report
from bringup.render.report import shares
from tests.check.mutations.bases import base
from tests.check.quantised_forms import FORMS, quantised

SIZES: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 96,
    "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2, "vocab_size": 96,
}  # fmt: skip


def llama(**words: Any) -> Job:
    return open_job(None, "dummy", config=SIZES | words)


def llama_fp8() -> Job:
    draft, form = base("llama"), FORMS["fp8-blocks"]
    tensors = quantised(draft.tensors, form)
    return open_job(None, dict_checkpoint(tensors, draft.config | {"quantization_config": form.words}))


def test_only_key_heads_are_replicated() -> None:
    """Four query heads over eight ranks would have each head's output summed twice."""
    refusals = divide(llama().plan, 8).refusals
    assert [finding.code for finding in refusals] == ["BU130"]
    assert "axis `h` of size 4 does not divide among 8 ranks" in refusals[0].message
    assert "every axis divides among 4 ranks" in refusals[0].help
    assert not divide(llama().plan, 4).refusals  # of two key heads, each in two ranks
    assert not divide(llama(num_key_value_heads=1).plan, 4).refusals


@pytest.mark.parametrize(
    ("words", "axis"),
    [
        ({"intermediate_size": 2}, "f"),
        ({"num_attention_heads": 2}, "h"),
    ],
)
def test_no_other_axis_is_replicated(words: dict[str, Any], axis: str) -> None:
    (refusal,) = divide(llama(**words).plan, 4).refusals
    assert f"axis `{axis}` of size 2 does not divide among 4 ranks" in refusal.message


def test_a_number_beyond_every_axis_is_refused_at_once() -> None:
    plan, start = llama().plan, time.process_time()
    shares = divide(plan, 960_000)
    assert time.process_time() - start < 5
    (refusal,) = shares.refusals
    assert (refusal.code, shares.nbytes) == ("BU130", [])
    assert "960,000 ranks" in refusal.message
    assert refusal.help.endswith("every axis divides among 4 ranks")


def test_no_more_ranks_are_advised_than_the_smallest_axis_has() -> None:
    for ranks in (3, 5, 6, 7, 33, 96):
        advised = [
            int(word)
            for finding in divide(llama().plan, ranks).refusals
            for word in finding.help.partition("divides among ")[2].split()
            if word.isdigit()
        ]
        assert advised
        assert all(1 < count <= 4 and not divide(llama().plan, count).refusals for count in advised)


def test_where_nothing_divides() -> None:
    odd = llama(intermediate_size=97)
    assert divide(odd.plan, 2).refusals[0].help.endswith("no number of ranks above 1 divides every axis")


def test_stored_bytes_are_those_of_payloads_and_scales() -> None:
    """One rank holds the bytes of the file."""
    job = llama_fp8()
    headers = job.checkpoint.headers.values()
    assert packed_shares(job, Parallel()) == [sum(info.nbytes for info in headers)]
    assert divide(job.plan, 1).nbytes == [sum(4 * math.prod(d.storage[0]) for d in job.plan.signature.values())]


def test_what_is_plain_is_printed_once() -> None:
    found = divide(llama().plan, 2)
    assert packed_shares(llama(), Parallel(tp=2)) == []
    text = shares(Report(bytes_per_rank=found.nbytes, dtype="float32"))
    assert text.startswith("2 ranks: ")
    assert "as stored" not in text


def test_both_figures_are_labelled() -> None:
    found = Report(bytes_per_rank=[4000, 4000], stored_bytes_per_rank=[1000, 1000], dtype="float32")
    assert shares(found) == "2 ranks: 1.0 kB each as stored, 4.0 kB as float32"
    found = Report(bytes_per_rank=[4000, 4000], stored_bytes_per_rank=[1000, 2000], dtype="float32")
    assert shares(found).splitlines()[1] == "rank 1: 2.0 kB as stored, 4.0 kB as float32"


def test_equal_ranks_share_a_line() -> None:
    found = Report(bytes_per_rank=[4000, 4000, 4000, 6000, 4000, 4000], dtype="float32")
    assert shares(found).splitlines() == ["ranks 0 to 2: 4.0 kB each", "rank 3: 6.0 kB", "ranks 4 to 5: 4.0 kB each"]
    found.read_bytes_per_rank = [5000] * 5 + [7000]
    assert shares(found).splitlines()[0] == "ranks 0 to 2: 4.0 kB each, 5.0 kB read"
    assert shares(found).splitlines()[3] == "rank 5: 4.0 kB, 7.0 kB read"
    assert shares(Report(dtype="float32")) == ""


VALUES = {
    "--tp": "2", "--ep": "2", "--pp": "2", "--stage-layers": "1,1", "--vocab-multiple": "64",
    "--expert-map": "map.json", "--redundant-experts": "1",
}  # fmt: skip


@pytest.mark.parametrize("name", ["check", "explain", "verify"])
def test_help_names_what_divides_a_model(name: str) -> None:
    """Each option of the section starts it, not only the three sizes."""
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    described = " ".join(command.get_help(click.Context(command)).split())
    assert "With any option under Ranks" in described.partition("Options:")[0]
    assert "--tp" not in described.partition("Options:")[0]
    listed = [option.opts[0] for option in command.params if getattr(option, "section", "") == "Ranks"]
    assert listed == list(VALUES)
    nothing = command.make_context(name, ["gpt2"]).params
    assert not any_ranks(nothing)  # type: ignore[arg-type]
    for option in listed:
        given = command.make_context(name, ["gpt2", option, VALUES[option]]).params
        assert any_ranks(given), option  # type: ignore[arg-type]
