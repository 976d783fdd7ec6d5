"""The measured engines. Each is opened in a separate process; see `process`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from bringup.compile.bench.timing import Contender, Timing
from bringup.compile.bundle.bundle_job import job_of_bundle
from bringup.compile.bundle.folder import read_manifest
from bringup.compile.parity.reference import cache_name, open_model
from bringup.compile.runtime.batch import Batch, load_batch
from bringup.compile.runtime.request import Request
from bringup.diagnostics import BringupError, fail

BUNDLE, TRANSFORMERS, LLAMA_CPP, TORCH_COMPILE = "bringup", "transformers", "llama.cpp", "torch.compile"


class Bundle:
    """A bundle, run as a batch with a request for each prompt."""

    def __init__(self, bundle: str, *, executor: str | None = None, threads: int = 1) -> None:
        manifest = read_manifest(Path(bundle))
        self._batch: Batch = load_batch(bundle, executor)
        self.name, self.dtype = f"{BUNDLE} {manifest['target']}", manifest["dtype"]

    def run(self, prompts: Sequence[Sequence[int]], new: int) -> Timing:
        start, processor = time.perf_counter(), time.process_time()
        order = [self._batch.add(Request(prompt, max_new_tokens=new)) for prompt in prompts]
        tokens: dict[int, list[int]] = {id: [] for id in order}
        times: dict[int, list[float]] = {id: [] for id in order}
        spent: list[float] = []
        while self._batch:
            for event in self._batch.step():
                tokens[event.id].append(event.token)
                times[event.id].append(time.perf_counter() - start)
            spent.append(time.process_time() - processor)
        return Timing([tokens[id] for id in order], [times[id] for id in order], spent)


class Transformers:
    """The model of a bundle's checkpoint in transformers: eager, its default attention, a growing cache.

    A greedy loop does a little less work than `generate`. Raises BU703 if transformers has no such model.
    """

    def __init__(self, bundle: str, *, checkpoint: str | None = None, threads: int = 1) -> None:
        import torch
        import transformers

        transformers.utils.logging.disable_progress_bar()
        torch.set_num_threads(threads)
        manifest = read_manifest(Path(bundle))
        job = job_of_bundle(manifest, checkpoint)
        self.name, self.dtype = f"{TRANSFORMERS} {transformers.__version__}", manifest["dtype"]
        self._model = open_model(job.checkpoint, job.config, dtype=getattr(torch, self.dtype))

    def run(self, prompts: Sequence[Sequence[int]], new: int) -> Timing:
        import torch

        start, processor = time.perf_counter(), time.process_time()
        name = cache_name(self._model)
        cache = self._cache(len(prompts), len(prompts[0]) + new - 1)
        given = torch.tensor([list(prompt) for prompt in prompts])
        columns: list[list[int]] = []
        times: list[float] = []
        spent: list[float] = []
        with torch.inference_mode():
            while len(columns) < new:
                forward = self._forward(is_prompt=not columns, is_last=len(columns) == new - 1)
                output = forward(given, use_cache=True, logits_to_keep=1, **{name: cache})
                given = output.logits[:, -1].argmax(-1, keepdim=True)
                columns.append(given[:, 0].tolist())
                times.append(time.perf_counter() - start)
                spent.append(time.process_time() - processor)
        return Timing([list(row) for row in zip(*columns, strict=True)], [times for _ in prompts], spent)

    def _cache(self, sequences: int, length: int) -> Any:
        """An empty cache for `sequences` sequences of `length` tokens."""
        from transformers import DynamicCache

        return DynamicCache(config=self._model.config)

    def _forward(self, *, is_prompt: bool, is_last: bool) -> Callable[..., Any]:
        return self._model


class TorchCompile(Transformers):
    """The same model, its complete forward compiled for each shape at its first run, with a cache of exactly the
    length.

    If more than one token is generated, the eager model processes the prompt, which is then not measured.
    """

    def __init__(self, bundle: str, *, checkpoint: str | None = None, threads: int = 1) -> None:
        import torch

        super().__init__(bundle, checkpoint=checkpoint, threads=threads)
        self.name = f"{TORCH_COMPILE} {torch.__version__}"
        self._compiled: Any = cast(Any, torch).compile(self._model.forward, fullgraph=True, dynamic=False)
        self._caches: dict[tuple[int, int], Any] = {}

    def _cache(self, sequences: int, length: int) -> Any:
        from transformers import StaticCache

        cache = self._caches.get((sequences, length))
        if cache is None:
            config = self._model.config
            heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
            width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
            cache = self._caches[sequences, length] = StaticCache(config=config, max_cache_len=length)
            cache.early_initialization(sequences, heads, width, self._model.dtype, self._model.device)
        cache.reset()
        return cache

    def _forward(self, *, is_prompt: bool, is_last: bool) -> Callable[..., Any]:
        return self._model if is_prompt and not is_last else self._compiled


def _llama_cpp(bundle: str, **settings: Any) -> Contender:
    from bringup.compile.bench.llama_cpp import LlamaCpp

    return LlamaCpp(bundle, **settings)


CONTENDERS: Mapping[str, Callable[..., Contender]] = {
    BUNDLE: Bundle,
    TRANSFORMERS: Transformers,
    TORCH_COMPILE: TorchCompile,
    LLAMA_CPP: _llama_cpp,
}
PEERS = (TRANSFORMERS, TORCH_COMPILE, LLAMA_CPP)


def opened(name: str, settings: Mapping[str, Any]) -> Contender:
    """The engine of a name. Raises BU922 if its package is not installed."""
    try:
        return CONTENDERS[name](**settings)
    except ModuleNotFoundError as error:
        raise missing(name, error.name or str(error)) from error


def missing(name: str, package: str) -> BringupError:
    """BU922: the package of an engine is not installed."""
    extras = {
        BUNDLE: "'bringup[compile]'",
        TRANSFORMERS: "'bringup[verify]'",
        TORCH_COMPILE: "'bringup[verify]'",
        LLAMA_CPP: "xllamacpp",
    }
    help = f"run: pip install {extras[name]}"
    return fail("BU922", f"timing `{name}` requires `{package}`, which is not installed", help=help)
