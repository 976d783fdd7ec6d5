# pyright: reportMissingImports=false
"""The C functions of llama.cpp, from any installed Python package that contains them."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_bool, c_char_p, c_float, c_int8, c_int32, c_size_t, c_uint32, c_void_p
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

SPARE = 512  # bytes; enough for the fields of a settings structure after those named here


class Settings(ctypes.Structure):
    """`llama_model_params`, unchanged. C passes so long a structure in memory, and reads only its own size."""

    _fields_ = (("rest", ctypes.c_byte * SPARE),)


class ContextSettings(ctypes.Structure):
    """`llama_context_params`: its first fields since version b1932 (January 2024), from llama.h."""

    _fields_ = (
        *((name, c_uint32) for name in ("n_ctx", "n_batch", "n_ubatch", "n_seq_max")),
        ("rest", ctypes.c_byte * SPARE),
    )


class TokenBatch(ctypes.Structure):
    """`llama_batch`, from llama.h."""

    _fields_ = (
        ("n_tokens", c_int32),
        ("token", POINTER(c_int32)),
        ("embd", POINTER(c_float)),
        ("pos", POINTER(c_int32)),
        ("n_seq_id", POINTER(c_int32)),
        ("seq_id", POINTER(POINTER(c_int32))),
        ("logits", POINTER(c_int8)),
    )


LogCallback = ctypes.CFUNCTYPE(None, ctypes.c_int, c_char_p, c_void_p)

# The result of each function, then its arguments.
SIGNATURES: dict[str, tuple[Any, ...]] = {
    "llama_log_set": (None, LogCallback, c_void_p),
    "llama_backend_init": (None,),
    "llama_model_default_params": (Settings,),
    "llama_model_load_from_file": (c_void_p, c_char_p, Settings),
    "llama_model_desc": (c_int32, c_void_p, c_char_p, c_size_t),
    "llama_model_get_vocab": (c_void_p, c_void_p),
    "llama_vocab_n_tokens": (c_int32, c_void_p),
    "llama_context_default_params": (ContextSettings,),
    "llama_init_from_model": (c_void_p, c_void_p, ContextSettings),
    "llama_set_n_threads": (None, c_void_p, c_int32, c_int32),
    "llama_n_ctx": (c_uint32, c_void_p),
    "llama_n_batch": (c_uint32, c_void_p),
    "llama_n_seq_max": (c_uint32, c_void_p),
    "llama_get_memory": (c_void_p, c_void_p),
    "llama_memory_clear": (None, c_void_p, c_bool),
    "llama_batch_init": (TokenBatch, c_int32, c_int32, c_int32),
    "llama_decode": (c_int32, c_void_p, TokenBatch),
    "llama_get_logits_ith": (POINTER(c_float), c_void_p, c_int32),
}


def c_functions() -> tuple[Any, str]:
    """An object with llama.cpp's functions as attributes, and the name and version of its package.

    llama-cpp-python, which pip builds for this machine, or else xllamacpp, whose library is loaded without its own
    server. Raises ModuleNotFoundError if neither is installed.
    """
    try:
        found: Any = import_module("llama_cpp")
    except ModuleNotFoundError:
        return _of_xllamacpp(), f"xllamacpp {version('xllamacpp')}"
    return found, f"llama-cpp-python {found.__version__}"


def _of_xllamacpp() -> Any:
    import_module("xllamacpp")  # raises ModuleNotFoundError
    spec = find_spec("xllamacpp.xllamacpp")
    assert spec
    assert spec.origin
    library = ctypes.CDLL(spec.origin)
    library.llama_log_callback = LogCallback  # pyright: ignore[reportAttributeAccessIssue]
    for name, (result, *arguments) in SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library
