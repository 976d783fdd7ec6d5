# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""llama.cpp, through its C functions: several sequences in one batch, greedy."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from bringup.compile.bench.c_functions import c_functions
from bringup.compile.bench.timing import Timing
from bringup.diagnostics import fail


class LlamaCpp:
    """A GGUF file in llama.cpp, for up to `batch` sequences of `length` tokens.

    `dtype` is llama.cpp's description of the file, such as `llama 1B Q4_K - Medium`. Its cache is float16 and its
    attention the default. Raises ModuleNotFoundError if no package has llama.cpp, BU703 for a file that it does not
    open, RuntimeError if it did not apply the settings.
    """

    def __init__(self, bundle: str, *, gguf: str, batch: int, length: int, threads: int) -> None:
        self._c: Any
        self._c, package = c_functions()
        self._silent = self._c.llama_log_callback(_say_nothing)  # the library stores its address
        self._c.llama_log_set(self._silent, None)
        self._c.llama_backend_init()
        self._model = self._c.llama_model_load_from_file(gguf.encode(), self._c.llama_model_default_params())
        if not self._model:
            raise fail("BU703", f"llama.cpp does not open `{gguf}`", help="name a GGUF file of the model: --gguf FILE")
        settings = self._c.llama_context_default_params()
        settings.n_ctx = settings.n_batch = batch * length
        settings.n_seq_max = batch
        self._context = self._c.llama_init_from_model(self._model, settings)
        if not self._context or not self._has_sizes(batch, length):
            raise RuntimeError(f"llama.cpp ({package}) has no context for {batch} sequences of {length} tokens")
        self._c.llama_set_n_threads(self._context, threads, threads)
        self._batch = self._c.llama_batch_init(batch * length, 0, 1)
        self._vocabulary = self._c.llama_vocab_n_tokens(self._c.llama_model_get_vocab(self._model))
        self.name, self.dtype = f"llama.cpp ({package})", self._described()

    def run(self, prompts: Sequence[Sequence[int]], new: int) -> Timing:
        start, processor = time.perf_counter(), time.process_time()
        self._c.llama_memory_clear(self._c.llama_get_memory(self._context), True)
        given = [(token, at, n, at == len(p) - 1) for n, p in enumerate(prompts) for at, token in enumerate(p)]
        tokens: list[list[int]] = [[] for _ in prompts]
        times: list[float] = []
        spent: list[float] = []
        while len(times) < new:
            drawn = self._step(given)
            times.append(time.perf_counter() - start)
            spent.append(time.process_time() - processor)
            position = len(prompts[0]) + len(times) - 1
            given = [(token, position, n, True) for n, token in enumerate(drawn)]
            for each, token in zip(tokens, drawn, strict=True):
                each.append(token)
        return Timing(tokens, [times for _ in prompts], spent)

    def _step(self, given: Iterable[tuple[int, int, int, bool]]) -> list[int]:
        """Processes tokens, each (token, position, sequence, whether its logits are needed); returns the next of each
        such.

        Raises RuntimeError for an error of llama.cpp.
        """
        last: list[int] = []
        for n, (token, position, sequence, is_last) in enumerate(given):
            self._batch.token[n], self._batch.pos[n] = token, position
            self._batch.n_seq_id[n], self._batch.seq_id[n][0] = 1, sequence
            self._batch.logits[n] = is_last
            last += [n] if is_last else []
            self._batch.n_tokens = n + 1
        if status := self._c.llama_decode(self._context, self._batch):
            raise RuntimeError(f"llama_decode returned {status}")
        shape = (self._vocabulary,)
        logits = (self._c.llama_get_logits_ith(self._context, n) for n in last)
        return [int(np.argmax(np.ctypeslib.as_array(row, shape))) for row in logits]

    def _has_sizes(self, batch: int, length: int) -> bool:
        """Whether the context has these sizes; other sizes show that the settings of a package have another layout."""
        tokens = min(self._c.llama_n_ctx(self._context), self._c.llama_n_batch(self._context))
        return tokens >= batch * length and self._c.llama_n_seq_max(self._context) == batch

    def _described(self) -> str:
        text = ctypes.create_string_buffer(128)
        self._c.llama_model_desc(self._model, text, len(text))
        return text.value.decode(errors="replace")


def _say_nothing(level: int, text: bytes, data: object) -> None: ...
