"""One contender in a separate process: `python workers.py NAME DTYPE PATH TOKENS` executes commands from stdin.

    prefill         processes the long prompt from empty caches, returns the greedy next token
    decode N        processes the short prompt from empty caches, returns N greedy tokens
    compile         compiles what is otherwise compiled on first use

Each response is a JSON list of tokens on one line. The parent, `Worker` in cpu.py, measures the time.
"""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module
from inspect import signature
from typing import Any, Protocol

import numpy as np

LONG, SHORT = 512, 16  # tokens of the two prompts
VOCABULARY = 50257


def prompt(length: int) -> list[int]:
    """Random tokens, the same ones for all contenders."""
    return np.random.default_rng(0).integers(0, VOCABULARY, length).tolist()


class Contender(Protocol):
    """What a command calls; both forget what came before."""

    def prefill(self) -> int: ...

    def decode(self, count: int) -> list[int]: ...


class Bringup:
    """A bundle of target `cpu`. The greedy loop is `Session.generate`'s."""

    def __init__(self, dtype: str, path: str, tokens: int) -> None:
        from bringup import load

        self.session = load(path)

    def prefill(self) -> int:
        self.session.reset()
        return int(np.argmax(self.session.prefill(prompt(LONG))[-1]))

    def decode(self, count: int) -> list[int]:
        return list(self.session.generate(prompt(SHORT), max_new_tokens=count))


class Transformers:
    """The eager model with sdpa attention, as `from_pretrained` gives it, and a growing cache."""

    def __init__(self, dtype: str, path: str, tokens: int) -> None:
        import torch
        from transformers import AutoModelForCausalLM, DynamicCache

        torch.set_grad_enabled(False)
        options = {"dtype": getattr(torch, dtype), "attn_implementation": "sdpa"}
        self.model: Any = AutoModelForCausalLM.from_pretrained(path, **options).eval()
        renamed = "cache" in signature(self.model.forward).parameters  # since transformers 5.24
        self.name = "cache" if renamed else "past_key_values"
        self.forward = self.model.forward  # of a single token
        self.tensor, self.growing = torch.tensor, DynamicCache

    def cache(self, role: str) -> Any:
        return self.growing(config=self.model.config)

    def next(self, forward: Any, tokens: list[int], cache: Any) -> int:
        output = forward(self.tensor([tokens]), use_cache=True, logits_to_keep=1, **{self.name: cache})
        return int(output.logits[0, -1].argmax())

    def prefill(self) -> int:
        return self.next(self.model, prompt(LONG), self.cache("prefill"))

    def decode(self, count: int) -> list[int]:
        cache = self.cache("decode")
        tokens = [self.next(self.model, prompt(SHORT), cache)]
        while len(tokens) < count:
            tokens.append(self.next(self.forward, tokens[-1:], cache))
        return tokens


class TorchCompile(Transformers):
    """The same model, its forward compiled whole for fixed shapes, with a static cache of just the needed length.

    Two graphs: 512 tokens, and one token. The short prompt of `decode` is taken in by the eager model.
    """

    def __init__(self, dtype: str, path: str, tokens: int) -> None:
        super().__init__(dtype, path, tokens)
        import torch
        from transformers import StaticCache

        self.forward = torch.compile(self.model.forward, fullgraph=True, dynamic=False)
        config = self.model.config
        self.static = {
            "prefill": StaticCache(config=config, max_cache_len=LONG),
            "decode": StaticCache(config=config, max_cache_len=SHORT + tokens),
        }
        for cache in self.static.values():
            width = config.hidden_size // config.num_attention_heads
            cache.early_initialization(1, config.num_attention_heads, width, self.model.dtype, self.model.device)

    def cache(self, role: str) -> Any:
        self.static[role].reset()
        return self.static[role]

    def prefill(self) -> int:
        return self.next(self.forward, prompt(LONG), self.cache("prefill"))


CONTENDERS = {"bringup": Bringup, "transformers": Transformers, "torch.compile": TorchCompile}


def _import(name: str) -> None:
    """The packages, apart from loading the model; transformers imports a model's code only when asked for it."""
    if name == "bringup":
        import_module("bringup.compile.runtime.session")
        return
    import torch
    import transformers

    import_module("transformers.models.gpt2.modeling_gpt2")
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    transformers.utils.logging.disable_progress_bar()


def main(name: str, dtype: str, path: str, tokens: str) -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what a library prints is not an answer

    def answer(value: list[int]) -> None:
        print(json.dumps(value), file=answers, flush=True)

    _import(name)
    answer([])
    contender: Contender = CONTENDERS[name](dtype, path, int(tokens))
    answer(contender.decode(1))
    for line in sys.stdin:
        command, *rest = line.split()
        if command == "compile":
            answer([contender.prefill(), *contender.decode(2)])
        else:
            answer([contender.prefill()] if command == "prefill" else contender.decode(int(rest[0])))


if __name__ == "__main__":
    main(*sys.argv[1:])
