"""Mistral 4 as transformers saves it: DeepSeek-V3's names, and the tensors of all experts of a layer in one."""

from __future__ import annotations

from bringup.adapters.deepseek import table
from bringup.adapters.planning.adapter import Adapter
from bringup.graphs.mistral4 import Mistral4Config


def adapter(config: Mistral4Config) -> Adapter:
    return table("mistral4", config, fused=True)
