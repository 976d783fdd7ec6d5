"""GLM-5 in GGUF: the keys and tensors of DeepSeek-V3.2, and the layers with an indexer.

Architecture `glm-dsa`: `GlmMoeDsaModel` of llama.cpp's conversion/glm.py. Rope rotates adjacent channels of the indexer
there too (src/models/glm-dsa.cpp), so no row is moved.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from bringup.adapters.dialects import deepseek, deepseek_v32
from bringup.adapters.dialects.dialect import Dialect

if TYPE_CHECKING:
    from bringup.adapters.checkpoints.gguf_config import Hyperparameters

LONGEST_FULL = 1 << 20  # of a shorter context, each layer of a file without types has an indexer


def derived(hyper: Hyperparameters) -> dict[str, Any]:
    """`indexer.types` has true for each layer with an indexer. Files without it are GLM-5 and 5.1, or early ones of
    GLM-5.2, for which llama.cpp has a table: the first three layers, then each fourth."""
    words, types = deepseek.derived(hyper), hyper.values.get("attention.indexer.types")
    if types is None:
        context = hyper.values.get("context_length")
        is_shared = type(context) is int and context >= LONGEST_FULL
        return words | ({"index_topk_freq": 4, "index_skip_topk_offset": 3} if is_shared else {})
    if isinstance(types, list):
        types = ["full" if kind else "shared" for kind in cast("list[object]", types)]
    return words | {"indexer_types": types}


dialect = Dialect(
    names=("glm-dsa",),
    architecture="GlmMoeDsaForCausalLM",
    keys=deepseek.KEYS | deepseek_v32.KEYS | {"attention.indexer.types": None},
    fixed={"model_type": "glm_moe_dsa", "hidden_act": "silu"},
    derived=derived,
    table=deepseek_v32.table,
)
