"""LLaVA and Mistral 3 as published: the text family's tensors under a longer prefix, a vision tower and a projector."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from bringup.adapters import llama, ministral3, mistral4, qwen2
from bringup.adapters.planning.adapter import Adapter
from bringup.graphs.llava import LlavaConfig

TABLES: dict[str, Callable[[Any], Adapter]] = {
    "llama": llama.adapter,
    "ministral3": ministral3.adapter,
    "mistral4": mistral4.adapter,
    "qwen2": qwen2.adapter,
}
PLACES = ("language_model.model.", "language_model.", "model.language_model.")


def adapter(config: LlavaConfig) -> Adapter:
    """Files have `language_model.model.` and `language_model.lm_head`; the modules of transformers 5
    `model.language_model.` and `lm_head`; files of the original code `model.` and `lm_head`, like Llama.
    """
    text = TABLES[config.block.family](config.block)
    rules = [replace(rule, pattern=rule.pattern.replace("model.", "model.language_model.", 1)) for rule in text.rules]
    llava = Adapter("llava", text.defaults, text.prefix, PLACES, rules=rules, drops=text.drops)
    llava.drop("vision_tower.{x:**}", why="it sees images; this graph is the language model, which reads text")
    for projector in ("multi_modal_projector", "mm_projector"):
        llava.drop(f"{projector}.{{x:**}}", why="it projects the features of the vision tower to tokens")
    llava.drop("image_newline", why="a token between the rows of an image")
    return llava
