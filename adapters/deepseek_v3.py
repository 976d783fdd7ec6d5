"""DeepSeek-V3 as published."""

from __future__ import annotations

from bringup.adapters.deepseek import table
from bringup.adapters.planning.adapter import Adapter
from bringup.graphs.deepseek_v3 import DeepseekV3Config


def adapter(config: DeepseekV3Config) -> Adapter:
    return table("deepseek_v3", config)
