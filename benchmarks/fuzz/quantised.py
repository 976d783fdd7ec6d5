"""Fuzzes the reader of quantised checkpoints: the keys of `quantization_config`; names, dtypes and shapes of tensors.

An input is JSON: the config keys, and the headers of a Llama with one layer. An input that is accepted is planned,
packed and checked.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from random import Random
from typing import Any, cast

import numpy as np

from benchmarks.fuzz.driver import Target, main
from benchmarks.fuzz.mutate import document_of, mutated_part
from bringup.adapters.checkpoints.checkpoint import Checkpoint
from bringup.compile.job import open_job
from bringup.compile.packed_job import pack_job
from bringup.compile.pipeline import check
from bringup.diagnostics import fail
from bringup.spec import DTYPES, TensorInfo
from tests.check.quantised_forms import FORMS, quantised

CONFIG: Mapping[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 96,
    "rms_norm_eps": 1e-5, "max_position_embeddings": 64, "rope_theta": 10000.0, "tie_word_embeddings": True,
    "hidden_act": "silu",
}  # fmt: skip
LAYER = "model.layers.0."
SHAPES = {
    "model.embed_tokens.weight": (96, 64), "model.norm.weight": (64,), f"{LAYER}input_layernorm.weight": (64,),
    f"{LAYER}post_attention_layernorm.weight": (64,), f"{LAYER}self_attn.q_proj.weight": (64, 64),
    f"{LAYER}self_attn.k_proj.weight": (32, 64), f"{LAYER}self_attn.v_proj.weight": (32, 64),
    f"{LAYER}self_attn.o_proj.weight": (64, 64), f"{LAYER}mlp.gate_proj.weight": (128, 64),
    f"{LAYER}mlp.up_proj.weight": (128, 64), f"{LAYER}mlp.down_proj.weight": (64, 128),
}  # fmt: skip
TOKENS = [f'"{word}"'.encode() for word in ("bits", "group_size", "int32", "weight_scale", "re:.*", "desc_act")]
TOKENS += [b"NaN", b"-1", b"1e999", b"null", b"true", b"[]", b"{}", b"\\ud800", b"128", b"0"]


def seeds() -> Iterator[bytes]:
    plain = {name: np.zeros(shape, np.float32) for name, shape in SHAPES.items()}
    for form in FORMS.values():
        headers = {name: [str(a.dtype), list(a.shape)] for name, a in quantised(plain, form).items()}
        yield json.dumps({"words": dict(form.words), "headers": headers}).encode()


def mutate(random: Random, seeds: Sequence[bytes]) -> bytes:
    """Bytes now and then; else the words or the headers, as JSON."""
    return mutated_part(random, seeds, TOKENS, ["words", "words", "headers"])


def parse(data: bytes) -> object:
    """The report of a check, and the packed job; errors are raised, as a compile would."""
    document = document_of(data)
    if not isinstance(document, dict):
        raise fail("BU126", "no object")
    words = cast("dict[str, Any]", document)
    given = Checkpoint(
        source="fuzz", format="dict", headers=dict(headers_of(words.get("headers"))), read=never,
        config={**CONFIG, "quantization_config": words.get("words")},
    )  # fmt: skip
    job = open_job(checkpoint=given)
    report = check(job)
    report.raise_if_errors()
    return pack_job(job)


def headers_of(found: object) -> Iterator[tuple[str, TensorInfo]]:
    """Headers as a reader gives them: of known dtypes, and of shapes that a file can have."""
    for name, entry in cast("dict[str, Any]", found).items() if isinstance(found, dict) else ():
        match entry:
            case [str() as dtype, list() as shape] if dtype in DTYPES and not DTYPES[dtype].block:
                sizes = tuple(cast("list[int]", shape))
                if all(type(size) is int and 0 <= size < 1 << 31 for size in sizes) and len(sizes) < 8:
                    yield name, TensorInfo(name, dtype, sizes, nbytes=DTYPES[dtype].nbytes(sizes))
            case _:
                pass


def never(info: TensorInfo) -> np.ndarray:
    raise AssertionError(f"a check reads no tensor: {info.name}")


@cache
def target() -> Target:
    return Target(
        name="quantised",
        about="`quantization_config` and the tensors' headers through `open_job`, `check` and `pack_job`.",
        seeds=[*seeds()],
        parse=parse,
        mutate=mutate,
    )


if __name__ == "__main__":
    sys.exit(main(target()))
