"""Every family on tensor-, expert- and pipeline-parallel ranks, in sizes that divide."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedConfig

from bringup.adapters.apply.parallel import Parallel
from bringup.compile.job import Job
from bringup.compile.ranks.verify import verify_ranks
from bringup.diagnostics import BringupError
from tests.models import family
from tests.models.test_families import FLOAT32, MORE, Case

NEAR = 2e-5  # of the largest logit: sums in another order
ROUGH = {"qwen3_5_moe": 3e-5}  # DeltaNets enlarge the rounding of float32
TOKENS = 40
# More ranks than key heads, groups of experts, complete experts on each rank, repeated experts, a padded vocabulary.
DIVISIONS: tuple[dict[str, int], ...] = (
    {"tp": 2}, {"tp": 4}, {"tp": 12}, {"pp": 2}, {"ep": 3}, {"tp": 2, "ep": 2}, {"tp": 4, "ep": 2}, {"tp": 2, "ep": 4},
    {"tp": 2, "pp": 2, "vocab_multiple": 8}, {"tp": 2, "ep": 2, "redundant": 2},
)  # fmt: skip
# The keys of sizes, by any family's name. The vocabulary stays odd: ranks pad it.
HEADS, KEY_HEADS, EXPERTS = 12, 4, 12
EVEN = {
    **dict.fromkeys(("hidden_size", "n_embd", "intermediate_size", "intermediate_size_mlp", "n_inner"), 96),
    **dict.fromkeys(("num_attention_heads", "n_head"), HEADS),
    **dict.fromkeys(("num_local_experts", "n_routed_experts", "num_experts"), EXPERTS),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 24),
    "moe_shared_expert_intermediate_size": 24,
    "num_key_value_heads": KEY_HEADS,
    "linear_num_key_heads": HEADS,
    "linear_num_value_heads": 2 * HEADS,
    **dict.fromkeys(("mamba_n_heads", "mamba_num_heads"), 2 * HEADS),
    "mamba_d_ssm": 2 * 96,
    "shared_intermediate_size": 24,
    "n_groups": KEY_HEADS,
    "head_dim": 8,
    "num_experts_per_tok": 3,
}
LONGROPE = "longrope"  # its factors are as many as half of a head's channels, which EVEN changes
CASES = [case for case in FLOAT32 if case.family not in MORE and LONGROPE not in case.name]
# In `make test`: one of most kinds of layers.
KINDS = {"bloom", "deepseek_v3", "gpt2", "lfm2", "llama", "mixtral", "olmo2"}
FIRST = {case.family: case for case in reversed(CASES) if case.family in KINDS}.values()


def even(words: dict[str, Any]) -> dict[str, Any]:
    """The keys of a config, in sizes that divide."""
    changed = {key: size for key, size in EVEN.items() if isinstance(words.get(key), int)}
    if "kv_lora_rank" in words:  # of MLA: its queries and keys have sizes of their own
        changed.pop("head_dim", None)
    if "mamba_d_head" in words:  # heads of this size are `mamba_expand` times as wide as the hidden state
        changed["mamba_d_head"] = words["mamba_expand"] * EVEN["hidden_size"] // EVEN["mamba_n_heads"]
    if words.get("num_key_value_heads") == words.get("num_attention_heads") and "num_key_value_heads" in changed:
        changed["num_key_value_heads"] = HEADS
    if "attention_value_scale" in words:  # of MiMo: layers with a window have twice the key heads
        changed["num_key_value_heads"] = KEY_HEADS // 2
    if isinstance(words.get("text_config"), dict):
        changed["text_config"] = even(words["text_config"])
    return words | changed


def divided(job: Job) -> Iterator[tuple[dict[str, int], Any]]:
    """The divisions whose axes divide, with their results."""
    for sizes in DIVISIONS:
        try:
            yield sizes, verify_ranks(job, parallel=Parallel(**sizes), prompt_tokens=TOKENS)
        except BringupError as error:
            if {finding.code for finding in error.findings} - {"BU045", "BU130", "BU138"}:
                raise


@pytest.mark.filterwarnings("ignore:BU151")
@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=() if case in FIRST else pytest.mark.slow, id=str(case)) for case in CASES]
)
def test_ranks_compute_what_one_does(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config: PreTrainedConfig = case.module.CASES[case.name]
    monkeypatch.setitem(case.module.CASES, case.name, type(config).from_dict(even(config.to_dict())))
    found = list(divided(family.written(case.module, case.name, tmp_path).job()))
    assert len([sizes for sizes, _ in found if sizes.get("tp", 1) > 1]) >= 2
    for sizes, parity in found:
        assert parity.ok, (sizes, parity.findings)
        assert max(each.relative for each in parity.differences) < ROUGH.get(case.family, NEAR), sizes
        assert len(parity.modules) > 4
