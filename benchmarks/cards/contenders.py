"""The contenders on a GPU: bringup's bundle, transformers, and transformers with torch.compile."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bringup.compile.gpu.executor import GpuExecutor
from bringup.compile.job import open_job
from bringup.compile.parity.reference import cache_name
from bringup.compile.pipeline import build
from bringup.compile.runtime.session import load
from bringup.compile.schedule.costs import cost_of, total

PROMPT_TOKEN = 5
DEVICE = "cuda"  # of the others, as torch names it


def prompt(count: int) -> list[int]:
    return [(PROMPT_TOKEN + 7 * at) % 1000 for at in range(count)]


class Contender(ABC):
    """Greedy tokens of a prompt, in order."""

    start_seconds: float

    @abstractmethod
    def tokens(self, count: int) -> list[int]:
        """From an empty cache: `count` new tokens, all of them on the host when it returns."""

    def seconds(self, count: int) -> float:
        """Of `tokens`, on the wall."""
        begin = time.perf_counter()
        self.tokens(count)
        return time.perf_counter() - begin


class Bringup(Contender):
    def __init__(self, checkpoint: Path, out: Path, capability: str, length: int, longest: int) -> None:
        begin = time.perf_counter()
        job = open_job(checkpoint=str(checkpoint))
        build(job, out=out, target=f"cuda:{capability}", max_seq_len=length + longest, buckets=(length,))
        self.compile_seconds = time.perf_counter() - begin
        begin = time.perf_counter()
        self.session = load(out, "gpu")
        self.prompt = prompt(length)
        self.tokens(1)
        self.start_seconds = time.perf_counter() - begin

    def tokens(self, count: int) -> list[int]:
        return list(self.session.generate(self.prompt, max_new_tokens=count))

    def facts(self, entry: str, keys: int) -> Mapping[str, int]:
        """Bytes and operations of an entry point, as `--emit schedule` counts them, and its launches."""
        executor = self.session.executor
        assert isinstance(executor, GpuExecutor)
        launches = list(executor._schedule.launches(entry))
        cost = total(cost_of(launch.graph, launch.group, keys) for launch in launches)
        drawing = executor._plan.sampling.get(entry)
        sampling = len(drawing.after) if drawing else 0
        moved = {"read": cost.nbytes - cost.written, "written": cost.written}
        return {**moved, "flops": cost.flops, "launches": len(launches) + sampling}


class Transformers(Contender):
    """Eager, scaled_dot_product_attention, `DynamicCache`; a plain greedy loop whose tokens stay on the card."""

    def __init__(self, checkpoint: Path, length: int, longest: int) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        begin = time.perf_counter()
        self.torch = torch
        torch.set_grad_enabled(False)
        options: dict[str, Any] = {"dtype": torch.bfloat16, "attn_implementation": "sdpa"}
        self.model: Any = AutoModelForCausalLM.from_pretrained(checkpoint, **options).eval().to(DEVICE)
        self.longest, self.name = length + longest, cache_name(self.model)
        self.forward = self.model.forward
        self.prompt = torch.tensor([prompt(length)], device=DEVICE)
        self.prepare()
        self.tokens(3)
        self.start_seconds = time.perf_counter() - begin

    def prepare(self) -> None:
        """Before the first token."""

    def cache(self) -> Any:
        from transformers import DynamicCache

        return DynamicCache(config=self.model.config)

    def tokens(self, count: int) -> list[int]:
        cache, found = self.cache(), []
        forward, given = self.model.forward, self.prompt
        while len(found) < count:
            logits = forward(given, use_cache=True, logits_to_keep=1, **{self.name: cache}).logits
            given = logits[:, -1].argmax(-1, keepdim=True).clone()
            found.append(given)
            forward = self.forward
        return self.torch.cat(found, 1)[0].tolist()


class TorchCompile(Transformers):
    """The forward of one token by torch.compile, max-autotune with CUDA graphs, over a static cache."""

    def prepare(self) -> None:
        from transformers import StaticCache

        self.forward = self.torch.compile(self.model.forward, mode="max-autotune", fullgraph=True, dynamic=False)
        self.static = StaticCache(config=self.model.config, max_cache_len=self.longest)

    def cache(self) -> Any:
        self.static.reset()
        return self.static
