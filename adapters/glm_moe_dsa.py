"""GLM-5 as published: DeepSeek-V3.2's tensors. Layers that share selected keys have no indexer."""

from __future__ import annotations

from bringup.adapters.deepseek_v32 import indexed
from bringup.adapters.planning.adapter import Adapter
from bringup.graphs.glm_moe_dsa import GlmMoeDsaConfig


def adapter(config: GlmMoeDsaConfig) -> Adapter:
    return indexed("glm_moe_dsa", config)
