"""An emulation of llama-cpp-python: a model whose next token depends on all tokens of a sequence, by position."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

VOCAB = 31
__version__ = "0.0"
llama_log_callback = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)


def following(tokens: list[int]) -> int:
    return sum((n + 1) * token for n, token in enumerate(tokens)) % VOCAB


def llama_log_set(callback: Any, data: Any) -> None: ...


def llama_backend_init() -> None: ...


def llama_model_default_params() -> SimpleNamespace:
    return SimpleNamespace()


def llama_model_load_from_file(path: bytes, settings: Any) -> SimpleNamespace | None:
    return None if path == b"missing.gguf" else SimpleNamespace()


def llama_context_default_params() -> SimpleNamespace:
    return SimpleNamespace()


def llama_init_from_model(model: Any, settings: Any) -> SimpleNamespace:
    return SimpleNamespace(settings=settings, tokens={}, logits={})


def llama_set_n_threads(context: Any, threads: int, threads_of_prompts: int) -> None:
    assert threads == threads_of_prompts == 1


def llama_n_ctx(context: Any) -> int:
    return context.settings.n_ctx


def llama_n_batch(context: Any) -> int:
    return context.settings.n_batch


def llama_n_seq_max(context: Any) -> int:
    return context.settings.n_seq_max


def llama_batch_init(tokens: int, embeddings: int, sequences: int) -> SimpleNamespace:
    def zeros() -> list[int]:
        return [0] * tokens

    rows = [[0] * sequences for _ in range(tokens)]
    return SimpleNamespace(n_tokens=0, token=zeros(), pos=zeros(), n_seq_id=zeros(), seq_id=rows, logits=zeros())


def llama_model_get_vocab(model: Any) -> None: ...


def llama_vocab_n_tokens(vocabulary: Any) -> int:
    return VOCAB


def llama_model_desc(model: Any, text: Any, size: int) -> None:
    text.value = b"double F32"


def llama_get_memory(context: Any) -> Any:
    return context


def llama_memory_clear(memory: Any, data: bool) -> None:
    memory.tokens.clear()


def llama_decode(context: Any, batch: Any) -> int:
    if batch.n_tokens > context.settings.n_batch:
        return 1
    context.logits = {}
    for n in range(batch.n_tokens):
        assert batch.n_seq_id[n] == 1
        known = context.tokens.setdefault(batch.seq_id[n][0], [])
        if batch.pos[n] != len(known) or len(context.tokens) > context.settings.n_seq_max:
            return -1
        known.append(batch.token[n])
        if batch.logits[n]:
            row = (ctypes.c_float * VOCAB)()
            row[following(known)] = 1.0
            context.logits[n] = row
    return 0


def llama_get_logits_ith(context: Any, n: int) -> Any:
    return ctypes.cast(context.logits[n], ctypes.POINTER(ctypes.c_float))
