"""The requests of `serve.py`: random LoRAs for a bundle, and the cases of a load."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

LORAS = ("red", "green", "blue")
RANK = 8
WORDS = [
    "the",
    "a",
    "sea",
    "of",
    "time",
    "and",
    "light",
    "river",
    "stone",
    "old",
    "house",
    "night",
    "bird",
    "song",
    "three",
    "seven",
    "under",
    "over",
    "blue",
    "quick",
    "slow",
]


def write_lora(folder: Path, sizes: Mapping[str, Sequence[int]], seed: int, scale: float) -> None:
    """Random factors for q and v of every layer, as PEFT saves them."""
    draw, tensors = np.random.default_rng(seed), dict[str, np.ndarray]()
    for name, (rows, columns) in sizes.items():
        stem = f"base_model.model.{name.removesuffix('.weight')}.lora_"
        tensors[f"{stem}A.weight"] = draw.standard_normal((RANK, columns), np.float32) / columns**0.5
        tensors[f"{stem}B.weight"] = scale * draw.standard_normal((rows, RANK), np.float32)
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    modules = sorted({name.split(".")[-2] for name in sizes})
    words = {"peft_type": "LORA", "r": RANK, "lora_alpha": RANK, "target_modules": modules, "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(words))


def sizes_of(bundle: str) -> dict[str, list[int]]:
    """[out, in] of the matrices that have slots."""
    manifest = json.loads(Path(bundle, "manifest.json").read_text("utf-8"))
    states = {state["name"]: state["shape"] for state in manifest["interface"]["states"] if state["kind"] == "lora"}
    names = [name.removesuffix("_lora.a") for name in states if name.endswith(".weight_lora.a")]
    return {name: [states[f"{name}_lora.b"][2], states[f"{name}_lora.a"][2]] for name in names}


@dataclass
class Case:
    """A request of the load: its fields, and what becomes of it."""

    model: str
    prompt: str
    count: int
    chat: bool
    stream: bool
    leaves: bool = False
    text: str | None = None
    seconds: float = 0.0
    tokens: list[int] = field(default_factory=list)
    single: str = ""

    @property
    def messages(self) -> list[Any]:
        return [{"role": "user", "content": self.prompt}]


def requests(count: int, seed: int, base: str, longest: int) -> list[Case]:
    """Few distinct prompts, so that single runs take less time than the load; what is done with each differs."""
    draw = random.Random(seed)
    texts = [" ".join(draw.choices(WORDS, k=draw.randint(2, 10))).capitalize() for _ in range(8)]
    cases: list[Case] = []
    for _ in range(count):
        chat = draw.random() < 0.1
        prompt = texts[0] if chat else draw.choice(texts)
        how = {"stream": draw.random() < 0.5, "leaves": draw.random() < 0.15}
        cases.append(Case(draw.choice((base, *LORAS)), prompt, longest, chat, **how))
    return cases
