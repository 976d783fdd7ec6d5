"""DeepSeek-V2 as published."""

from __future__ import annotations

from bringup.adapters.deepseek import table
from bringup.adapters.planning.adapter import Adapter
from bringup.graphs.deepseek_v2 import DeepseekV2Config


def adapter(config: DeepseekV2Config) -> Adapter:
    return table("deepseek_v2", config)
