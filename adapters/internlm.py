"""InternLM as published: Llama's names and layouts."""

from __future__ import annotations

from bringup.adapters.llama import adapter as llama
from bringup.adapters.planning.adapter import Adapter
from bringup.graphs.internlm import InternLMConfig


def adapter(config: InternLMConfig) -> Adapter:
    return llama(config)
