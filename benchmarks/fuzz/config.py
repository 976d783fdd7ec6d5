"""Fuzzes the reader of config.json, for every family."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from random import Random

from benchmarks.fuzz.configs import CONFIGS
from benchmarks.fuzz.driver import Target, main
from benchmarks.fuzz.mutate import document_of, mutated, mutated_json, written
from benchmarks.fuzz.scratch import scratch_folder
from bringup.adapters.checkpoints.bounded_json import read_config
from bringup.diagnostics import BringupError, Severity
from bringup.graphs.config.hf_config import architectures
from bringup.graphs.registry import by_architecture

FILE = scratch_folder() / "config.json"


def mutate(random: Random, seeds: Sequence[bytes]) -> bytes:
    """Bytes now and then; mostly the values of a config."""
    document = document_of(random.choice(seeds))
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
    about="config.json through `adapters/checkpoints/bounded_json.py`, the choice of a family, and `HFConfig.read`.",
    seeds=CONFIGS,
    parse=parse,
    mutate=mutate,
)

if __name__ == "__main__":
    sys.exit(main(TARGET))
