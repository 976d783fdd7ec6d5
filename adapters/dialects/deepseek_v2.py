"""DeepSeek-V2 in GGUF: a `deepseek2` whose experts are scored by softmax.

llama.cpp selects groups by the sum of their two best experts, as in V3. V2's own rule is used here, the best expert of
each group (DeepSeek-V2 report, section 2.2.2).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bringup.adapters.dialects import deepseek
from bringup.adapters.dialects.dialect import Dialect

if TYPE_CHECKING:
    from bringup.adapters.checkpoints.gguf_config import Hyperparameters


def derived(hyper: Hyperparameters) -> dict[str, Any]:
    grouped = (hyper.values.get("expert_group_count") or 1) != 1
    words = deepseek.derived(hyper) | {"topk_method": "group_limited_greedy" if grouped else "greedy"}
    del words["num_nextn_predict_layers"]  # V2 has no draft
    return words


dialect = Dialect(
    names=("deepseek2",),
    architecture="DeepseekV2ForCausalLM",
    keys=deepseek.KEYS,
    fixed={"model_type": "deepseek_v2", "hidden_act": "silu"},
    derived=derived,
    table=deepseek.table,
    when=lambda hyper: deepseek.gating(hyper) == deepseek.SOFTMAX,
)
