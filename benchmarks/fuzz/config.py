"""Fuzzes the reading of config.json files, as GPT-2's, Llama's and Mistral's family."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from random import Random

from driver import Target, main
from mutate import mutated, mutated_json, written
from scratch import scratch_folder

from bringup.adapters.readers.jsonfile import read_config
from bringup.diagnostics import BringupError, Severity
from bringup.graphs.config import architectures
from bringup.graphs.gpt2 import SIZES
from bringup.graphs.registry import by_architecture

FILE = scratch_folder() / "config.json"
LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 96,
    "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2, "vocab_size": 100, "hidden_act": "silu",
    "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "tie_word_embeddings": True,
    "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                     "original_max_position_embeddings": 128},
}  # fmt: skip
MISTRAL = LLAMA | {
    "architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 16, "head_dim": 32,
    "layer_types": ["full_attention", "sliding_attention"], "rope_scaling": {"type": "linear", "factor": 2},
}  # fmt: skip
SEEDS = [json.dumps(raw).encode() for raw in (SIZES["gpt2"], SIZES["gpt2"] | {"n_inner": 64}, LLAMA, MISTRAL)]


def mutate(random: Random, seeds: Sequence[bytes]) -> bytes:
    """Bytes now and then; mostly the values of a config."""
    data = random.choice(seeds)
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        document = None
    if document is None or random.random() < 0.2:
        return mutated(random, seeds, [b"NaN", b"-Infinity", b"1e999", b"null", b"[]", b"{}", b"\\ud800"])
    return written(random, mutated_json(random, document))


def parse(data: bytes) -> object:
    """The config and what is wrong with it; an error among the findings is raised, as a compile would."""
    FILE.write_bytes(data)
    raw = read_config(FILE)
    config, findings = by_architecture(architectures(raw)).load("config").read(raw)
    if any(finding.severity is Severity.ERROR for finding in findings):
        raise BringupError(*findings)
    return config


TARGET = Target(
    name="config",
    about="config.json through `adapters/readers/jsonfile.py`, the choice of a family, and `HFConfig.read`.",
    seeds=SEEDS,
    parse=parse,
    mutate=mutate,
)

if __name__ == "__main__":
    sys.exit(main(TARGET))
