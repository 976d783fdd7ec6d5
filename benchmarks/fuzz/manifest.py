"""Fuzzes the reader of bundle manifests. A manifest that is accepted is converted to an interface, as `run` does."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from random import Random
from typing import Any

from benchmarks.fuzz.driver import Target, main
from benchmarks.fuzz.mutate import document_of, mutated, mutated_json, written
from benchmarks.fuzz.scratch import scratch_folder
from bringup.compile.bundle.folder import SCHEMA, read_manifest
from bringup.compile.program.program import Interface
from bringup.graphs.gpt2 import SIZES

BUNDLE = scratch_folder()
CALLS = [("prologue", "", []), ("layer0", "h.0.", [0]), ("layer0", "h.1.", [1]), ("epilogue", "", [2])]


def entry(name: str, tokens: int) -> dict[str, Any]:
    calls = [{"function": f"{name}.{stage}", "prefix": prefix, "inputs": inputs} for stage, prefix, inputs in CALLS]
    hidden = {"name": "hidden", "shape": [tokens, 4], "dtype": "float32"}
    outputs = {"logits": len(calls), "hidden.1": 2}
    return {
        "name": name, "num_tokens": tokens, "num_sequences": 1, "decode": tokens == 1, "contiguous": True,
        "proposals": False, "calls": calls, "outputs": outputs, "inputs": [hidden],
    }  # fmt: skip


def manifest() -> dict[str, Any]:
    entries = [entry("prefill_64", 64), entry("decode", 1)]
    names = sorted({call["function"] for one in entries for call in one["calls"]})
    tensors = [{"name": f"h.{layer}.w", "shape": [4, 4], "dtype": "bfloat16"} for layer in range(2)]
    interface = {
        "functions": [{"name": name, "weights": ["w"], "states": ["k"]} for name in names],
        "entries": entries, "weights": tensors, "states": [tensor | {"kind": "paged"} for tensor in tensors],
        "max_blocks": 4, "all_logits": False, "block_size": 64, "num_blocks": 5, "num_rows": 2, "rewindable": None,
    }  # fmt: skip
    return {
        "schema": SCHEMA, "target": "cpu", "model_argument": None, "model": "gpt2", "adapter": None, "allow": {},
        "dtype": "float32", "max_seq_len": 64, "vocab_size": 100, "weights": "dummy", "provenance": {"source": "dummy"},
        "config": SIZES["gpt2"], "aliases": {"lm_head": "wte"}, "files": {"there": "0" * 64}, "interface": interface,
    }  # fmt: skip


SEEDS = [json.dumps(seed).encode() for seed in (manifest(), manifest() | {"files": {}})]


def mutate(random: Random, seeds: Sequence[bytes]) -> bytes:
    """Bytes now and then; mostly the values of a manifest."""
    document = document_of(random.choice(seeds))
    if document is None or random.random() < 0.2:
        return mutated(random, seeds, [b"null", b"[]", b"{}", b"-1", b'"../x"', b"1e999"])
    return written(random, mutated_json(random, document))


def parse(data: bytes) -> object:
    (BUNDLE / "manifest.json").write_bytes(data)
    return Interface.from_json(read_manifest(BUNDLE)["interface"])


TARGET = Target(
    name="manifest",
    about="`compile/bundle/manifest.py`, and `Interface.from_json` on what it lets through.",
    seeds=SEEDS,
    parse=parse,
    mutate=mutate,
)

if __name__ == "__main__":
    (BUNDLE / "there").touch()
    sys.exit(main(TARGET))
