"""Rounds: in each, every engine runs every shape once, between two measurements of the memory bandwidth."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from bringup.adapters.checkpoints.arrays import numpy_dtype
from bringup.compile.bench.bandwidth import Probe
from bringup.compile.bench.contenders import BUNDLE, LLAMA_CPP, TORCH_COMPILE, TRANSFORMERS
from bringup.compile.bench.process import Process
from bringup.compile.bench.timing import Row, Shape, Turn
from bringup.compile.bundle.folder import read_manifest
from bringup.compile.program.program import Entry, Interface
from bringup.diagnostics import fail
from bringup.progress import Progress, Silent
from bringup.system.processors import processors


@dataclass(frozen=True, slots=True)
class Report:
    """The results of `bench`. `peaks`: bytes of memory, by engine. `weights`: bytes of weights that a step reads."""

    bundle: str
    target: str
    dtypes: Mapping[str, str]
    threads: int
    rounds: int
    weights: int
    bandwidth: float
    peaks: Mapping[str, int]
    rows: Sequence[Row]

    def as_json(self) -> dict[str, Any]:
        """Ratios of a row are of that engine's times to the bundle's: how many times as fast the bundle is."""
        own = {row.shape: row for row in self.rows if row.contender == self.rows[0].contender}
        return {
            **{"bundle": self.bundle, "target": self.target, "threads": self.threads, "rounds": self.rounds},
            **{"weight_bytes": self.weights, "read_bytes_per_s": self.bandwidth},
            "contenders": [
                {"name": name, "dtype": dtype, "peak_bytes": self.peaks[name]} for name, dtype in self.dtypes.items()
            ],
            "rows": [_as_json(row, own[row.shape]) for row in self.rows],
        }


def _as_json(row: Row, own: Row) -> dict[str, Any]:
    if row is own:
        return row.figures()
    return row.figures() | {"ratios": dict(own.ratios(row)), "equal_tokens": own.equal_tokens(row)}


def bench(
    bundle: str | PathLike[str],
    shapes: Sequence[Shape],
    *,
    against: Sequence[str] = (),
    checkpoint: str | None = None,
    gguf: str | None = None,
    executor: str | None = None,
    threads: int | None = None,
    rounds: int = 3,
    warmup: int = 1,
    seed: int = 0,
    progress: Progress | None = None,
) -> Report:
    """Measures a bundle, and `against` other engines in alternation, on the same random prompts, without stop tokens.

    Every engine is a separate process for all rounds, with `threads` processors, by default all. `warmup` rounds are
    not counted. `checkpoint` is for transformers, compiled or not, if it is not that of the manifest; `gguf` is
    llama.cpp's file, by default the checkpoint. A shape that is named twice is measured once. Raises BU024 for shapes
    that do not fit the bundle and for more threads than processors, BU703 and BU922 for engines that cannot run here.
    """
    manifest, path = read_manifest(Path(bundle)), str(bundle)
    shapes, usable = [*dict.fromkeys(shapes)], processors()
    for shape in shapes:
        check_shape(manifest, shape)
    if threads is not None and threads > usable:
        message = f"{threads:,} processors are requested for each engine, and this process may use {usable}"
        raise fail("BU024", message, help="leave --threads out for all of them")
    threads = threads or usable
    progress, random = progress or Silent(), np.random.default_rng(seed)
    settings: dict[str, dict[str, Any]] = {BUNDLE: {"bundle": path, "executor": executor}}
    for name in against:
        settings[name] = {"bundle": path}
        if name in (TRANSFORMERS, TORCH_COMPILE):
            settings[name]["checkpoint"] = checkpoint
        elif name == LLAMA_CPP:
            longest = {"batch": max(s.batch for s in shapes), "length": max(s.length for s in shapes)}
            settings[name] |= longest | {"gguf": gguf or _gguf_of(manifest)}
    with ExitStack() as stack:
        with progress.stage("Opening engines") as stage:
            running = [stack.enter_context(Process(name, given, threads)) for name, given in settings.items()]
            stage.done(", ".join(process.name for process in running))
        probe = Probe(threads)
        weights = weight_bytes(manifest)
        rows = [
            Row(process.name, shape, [], weights if process is running[0] else None)
            for shape in shapes
            for process in running
        ]
        probes: list[float] = []
        with progress.stage("Running rounds") as stage:
            for number in range(warmup + rounds):
                found = _round(running, shapes, number, probe, random, manifest["vocab_size"])
                stage.advance((number + 1) / (warmup + rounds))
                if number < warmup:
                    continue
                for row, turn in zip(rows, found, strict=True):
                    row.turns.append(turn)
                    probes.append(turn.bandwidth)
            stage.done(f"{rounds} after {warmup} that {'does' if warmup == 1 else 'do'} not count")
        return Report(
            bundle=path,
            target=manifest["target"],
            dtypes={process.name: process.dtype for process in running},
            threads=threads,
            rounds=rounds,
            weights=weights,
            bandwidth=statistics.median(probes),
            peaks={process.name: process.peak_bytes() for process in running},
            rows=rows,
        )


def _round(
    running: Sequence[Process],
    shapes: Sequence[Shape],
    number: int,
    probe: Probe,
    random: np.random.Generator,
    vocabulary: int,
) -> Iterable[Turn]:
    """A turn for each shape and process, in this order; each round begins with another process."""
    found: list[Turn] = []
    before = probe.bytes_per_second()
    for shape in shapes:
        prompts = random.integers(0, vocabulary, (shape.batch, shape.taken)).tolist()
        turns: dict[int, Turn] = {}
        for n in range(len(running)):
            at = (n + number) % len(running)
            timing = running[at].run(prompts, shape.new)
            after = probe.bytes_per_second()
            turns[at] = Turn(timing, (before + after) / 2)
            before = after
        found += [turns[at] for at in range(len(running))]
    return found


def check_shape(manifest: Mapping[str, Any], shape: Shape) -> None:
    """Raises BU024 for a shape that does not fit the bundle of a manifest."""
    most, context, longest = largest_batch(manifest), manifest["max_seq_len"], manifest.get("max_input_len")
    if shape.batch > most:
        message = f"a batch of {shape.batch} does not fit the bundle, which supports {most} at a time"
        raise fail("BU024", message, help=f"compile it with --max-batch-size {shape.batch}")
    if shape.length > context:
        message = f"{shape.taken} tokens and {shape.new} new ones do not fit the bundle's context of {context}"
        raise fail("BU024", message, help=f"compile it with --max-seq-len {shape.length}")
    if longest is not None and shape.taken > longest:
        message = f"{shape.taken} tokens do not fit the bundle, whose longest prompt has {longest}"
        raise fail("BU024", message, help=f"compile it with --max-input-len {shape.taken}")


def largest_batch(manifest: Mapping[str, Any]) -> int:
    """The largest batch size of a bundle."""
    return max(entry["num_sequences"] for entry in manifest["interface"]["entries"] if entry["decode"])


def weight_bytes(manifest: Mapping[str, Any]) -> int:
    """Bytes of the weights that a step of decode reads: all except those that only the first function uses, for
    lookups.

    Shared weights count once. For experts all are counted, although a step reads only the selected ones.
    """
    interface = Interface.from_json(manifest["interface"])
    functions = {function.name: function for function in interface.functions}
    entry: Entry = next(entry for entry in interface.entries if entry.decode)
    aliases: Mapping[str, str] = manifest["aliases"]
    calls = entry.calls[1:] or entry.calls
    read = {call.prefix + name for call in calls for name in functions[call.function].weights}
    stored = {spec.name: spec for spec in interface.weights}
    specs = [stored[name] for name in {aliases.get(name, name) for name in read}]
    return sum(math.prod(spec.shape) * numpy_dtype(spec.dtype).itemsize for spec in specs)


def _gguf_of(manifest: Mapping[str, Any]) -> str:
    """The GGUF file of a bundle's checkpoint. Raises BU703 for another format."""
    found: str = manifest["provenance"].get("path", "")
    if found.endswith(".gguf") and Path(found).is_file():
        return found
    help = "name a GGUF file of the same model: --gguf FILE"
    raise fail("BU703", "llama.cpp reads GGUF files only, and there is none of the bundle's checkpoint here", help=help)
