"""The largest published checkpoint of each family: its config.json, verbatim (configs/), and its published figures."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CONFIGS = Path(__file__).parent / "configs"


@dataclass(frozen=True, kw_only=True)
class Flagship:
    """What is known of a checkpoint; None where nobody published it. `elements` are counted as stored, U8 as bytes."""

    name: str
    tensors: int | None
    elements: int | None = None
    nbytes: int | None = None
    by_dtype: dict[str, int] | None = None  # elements
    shards: int
    shard: str = "model-{number:05}-of-{total:05}.safetensors"
    first_shard: int = 1
    source: str

    @property
    def config(self) -> dict[str, Any]:
        return json.loads((CONFIGS / f"{self.name}.json").read_text("utf-8"))

    def shard_names(self) -> list[str]:
        last = self.first_shard + self.shards - 1
        return [self.shard.format(number=number, total=last) for number in range(self.first_shard, last + 1)]


# "Index" is the repository's model.safetensors.index.json; "Hub" the count by dtype that huggingface.co shows beside a
# model and gives as `safetensors` at huggingface.co/api/models/REPOSITORY.
FLAGSHIPS = (
    Flagship(
        name="llama-3.1-405b",
        tensors=None,
        elements=405_853_388_800,
        nbytes=811_706_777_600,
        shards=191,
        source="meta-llama/Llama-3.1-405B: Hub, BF16; two bytes each",
    ),
    Flagship(
        name="mixtral-8x22b",
        tensors=1739,
        elements=140_620_634_112,
        nbytes=281_241_268_224,
        shards=59,
        source="mistralai/Mixtral-8x22B-v0.1: index. With the 32,768 words of Instruct-v0.1 140,630,071,296 elements",
    ),
    Flagship(
        name="qwen3-235b-a22b",
        tensors=36_945,
        elements=235_093_634_560,
        nbytes=470_187_269_120,
        shards=118,
        source="Qwen/Qwen3-235B-A22B: Hub and index",
    ),
    Flagship(
        name="deepseek-v3",
        tensors=91_991,
        elements=684_531_386_000,
        by_dtype={"F8_E4M3": 680_571_043_840, "BF16": 3_918_786_560, "F32": 41_555_600},
        shards=163,
        source="deepseek-ai/DeepSeek-V3: index; Hub. The index's total_size, 1,369,062,772,000, counts two bytes each",
    ),
    Flagship(
        name="deepseek-v3.2",
        tensors=92_425,
        elements=685_396_921_376,
        shards=163,
        source="deepseek-ai/DeepSeek-V3.2-Exp: index; Hub. V3.2 has the same; there the Hub leaves out the scales",
    ),
    Flagship(
        name="gpt-oss-120b",
        tensors=687,
        nbytes=65_248_815_744,
        shards=15,
        first_shard=0,
        source="openai/gpt-oss-120b: index; 60.8 GiB in table 1 of the model card, arXiv 2508.10925",
    ),
    Flagship(
        name="glm-4.5",
        tensors=None,
        elements=358_337_791_296,
        shards=93,
        source="zai-org/GLM-4.5: Hub; sizes as in THUDM/slime, scripts/models/glm4.5-355B-A32B.sh",
    ),
    Flagship(
        name="bloom-176b",
        tensors=845,
        elements=176_247_271_424,
        nbytes=352_494_542_848,
        shards=72,
        shard="model_{number:05}-of-{total:05}.safetensors",
        source="bigscience/bloom: model card; index; Hub",
    ),
)  # fmt: skip
BY_NAME = {flagship.name: flagship for flagship in FLAGSHIPS}
