"""What ranks hold, compared with the plan of each rank, and the work that it takes."""

from __future__ import annotations

from collections.abc import Collection
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from bringup.adapters.apply.byte_runs import read_nbytes
from bringup.adapters.apply.parallel import Parallel
from bringup.adapters.apply.rank_plan import Stages, rank_plan
from bringup.adapters.apply.shares import shares
from bringup.adapters.planning.plan import Plan
from bringup.compile.check.ranks import divide
from bringup.compile.job import Job, open_job
from tests.quantised.checkpoints import write
from tests.quantised.formats import FORMATS
from tests.quantised.int4_formats import FORMATS as INT4

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 50, "hidden_size": 32,
    "intermediate_size": 64, "num_attention_heads": 8, "num_key_value_heads": 2, "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
}  # fmt: skip
KINDS: list[dict[str, Any]] = [
    {"tp": 2}, {"tp": 4}, {"pp": 2}, {"tp": 2, "pp": 2}, {"ep": 2}, {"tp": 2, "ep": 2}, {"tp": 2, "ep": 4},
    {"ep": 2, "redundant": 2}, {"tp": 2, "vocab_multiple": 64}, {"tp": 2, "bias": "every"},
    {"pp": 2, "stage_layers": (2, 1)},
]  # fmt: skip


@cache
def dummy(layers: int) -> Job:
    return open_job("llama", "dummy", config=LLAMA | {"num_hidden_layers": layers})


def one_by_one(job: Job, parallel: Parallel) -> list[tuple[int, int]]:
    """The bytes that each rank holds and reads, from its own plan."""
    found: list[tuple[int, int]] = []
    for number in range(parallel.size):
        part = rank_plan(job.plan, parallel, number, Stages.of(job.graph))
        later = {name for name, first in job.plan.aliases().items() if first in part.entries}
        held = sum(entry.declared.nbytes for name, entry in part.entries.items() if name not in later)
        found.append((held, read_nbytes([part])))
    return found


def refusal(name: str, words: dict[str, Any]) -> str | None:
    """The code of the reason why a model is not divided so; None if it is."""
    if name in INT4 and words.get("tp", 1) > 1:
        return "BU136"  # a block of quantised values would be cut
    if "ep" in words and name not in ("qwen3_moe", "deepseek_v3"):
        return "BU138" if "redundant" in words else "BU130"  # without experts
    return "BU045" if "stage_layers" in words and name != "dummy" else None  # other models have two layers


@pytest.mark.parametrize("words", KINDS, ids=str)
@pytest.mark.parametrize("name", ["dummy", "qwen3_moe", "deepseek_v3", "phi3", "awq", "nf4 nested"])
def test_shares_are_those_of_the_plans(name: str, words: dict[str, Any], tmp_path: Path) -> None:
    if name == "dummy":
        job = dummy(3)
    elif name in INT4:
        job = open_job(checkpoint=str(write("llama of words", INT4[name], tmp_path)[0]))
    else:
        job = open_job(checkpoint=str(write(name, FORMATS["fp8-tensor"], tmp_path)[0]))
    parallel = Parallel(**words)
    found = divide(job.plan, parallel, Stages.of(job.graph))
    code = refusal(name, words)
    assert {each.code for each in found.refusals} == ({code} if code else set())
    if code:
        assert not found.nbytes
        return
    assert list(zip(found.nbytes, found.read, strict=True)) == one_by_one(job, parallel)


@pytest.mark.parametrize(("words", "kinds"), [({"tp": 4}, 4), ({"tp": 2, "pp": 2}, 2)])
def test_equal_layers_are_measured_once(words: dict[str, Any], kinds: int) -> None:
    """The number of measurements does not depend on the number of layers or of stages."""

    def measured(layers: int) -> int:
        calls: list[int] = []

        def measure(part: Plan, tied: Collection[str]) -> tuple[int]:
            calls.append(len(part.entries))
            return (len(part.entries),)

        job = dummy(layers)
        found = shares(job.plan, Parallel(**words), Stages.of(job.graph), measure)
        assert sum(map(sum, found)) == sum(
            len(rank_plan(job.plan, Parallel(**words), number, Stages.of(job.graph)).entries)
            for number in range(Parallel(**words).size)
        )
        return len(calls)

    assert measured(3) == measured(24) <= kinds * 12 + 1
