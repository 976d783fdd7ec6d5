"""Ministral 3 as transformers saves it: Llama's names and layouts."""

from __future__ import annotations

from bringup.adapters.llama import table
from bringup.adapters.planning.adapter import Adapter
from bringup.graphs.ministral3 import Ministral3Config


def adapter(config: Ministral3Config) -> Adapter:
    return table("ministral3", config)
