"""The work of a check grows with the number of tensors and no faster, whatever is wrong with them.

It is counted in calls of functions, which nothing else on the machine changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from cProfile import Profile
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from benchmarks.check_times import FAULTS, Spoilt
from bringup.compile.job import open_job
from bringup.compile.pipeline import check
from bringup.diagnostics import Report
from tests.flagships.headers import float_tensors, fp8, write
from tests.flagships.published import BY_NAME

FLAGSHIP = replace(BY_NAME["deepseek-v3"], shards=3)
SMALL = FLAGSHIP.config | {
    "hidden_size": 256, "intermediate_size": 384, "moe_intermediate_size": 128, "num_attention_heads": 4,
    "num_key_value_heads": 4, "q_lora_rank": 128, "kv_lora_rank": 128, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32,
    "v_head_dim": 128, "vocab_size": 512, "first_k_dense_replace": 1, "num_hidden_layers": 3, "n_routed_experts": 8,
    "n_group": 2, "topk_group": 1, "num_experts_per_tok": 2,
}  # fmt: skip
SOUND, QUICK = "none", ("hidden_size doubled",)  # which once compared the scales of all experts with one another
SIZES = {"n_routed_experts": (8, 16, 32), "num_hidden_layers": (4, 8, 16)}
# From the second size to the third, work in proportion to the tensors grows by twice as much as from the first to the
# second; where each is compared with all others, by four times as much.
MOST = 2.5


def calls(do: Callable[[], object]) -> int:
    """How many functions are called meanwhile, those written in C among them."""
    with Profile(subcalls=False) as profile:  # counts in C: a function of Python at each call takes most of the time
        do()
    return sum(entry.callcount for entry in profile.getstats())


def spoilt_folder(folder: Path, fault: str, size: dict[str, int]) -> Path:
    """A small DeepSeek-V3 with a draft layer, headers only."""
    config: dict[str, Any] = SMALL | size
    spoilt = Spoilt(config, fp8(float_tensors(config)), "model.layers.1.self_attn.o_proj.weight")
    if fault != SOUND:
        FAULTS[fault](spoilt)
    at = write(folder, FLAGSHIP, spoilt.tensors, spoilt.config)
    if spoilt.lost:
        (at / FLAGSHIP.shard_names()[1]).unlink()
    return at


def marked() -> Iterator[Any]:
    for fault in (SOUND, *FAULTS):
        yield pytest.param(fault, marks=() if fault in QUICK else pytest.mark.slow)


def checked(folder: Path) -> Report:
    return check(open_job(None, str(folder)))


@pytest.mark.parametrize("key", SIZES)
@pytest.mark.parametrize("fault", list(marked()))
def test_calls_grow_with_the_tensors(tmp_path: Path, fault: str, key: str) -> None:
    folders = [spoilt_folder(tmp_path / str(n), fault, {key: n}) for n in SIZES[key]]
    report = checked(folders[0])  # what is imported and kept is so from here on
    assert fault != SOUND or not report.findings, report.findings
    few, more, most = (calls(partial(checked, folder)) for folder in folders)
    assert most - more <= MOST * (more - few), (few, more, most)
