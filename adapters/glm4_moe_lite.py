"""GLM-4.7-Flash as published."""

from __future__ import annotations

from bringup.adapters.deepseek import table
from bringup.adapters.planning.adapter import Adapter
from bringup.graphs.glm4_moe_lite import Glm4MoeLiteConfig


def adapter(config: Glm4MoeLiteConfig) -> Adapter:
    return table("glm4_moe_lite", config)
