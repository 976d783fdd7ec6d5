"""Writes benchmarks/results/…-kernel-bytes.md: the bytes that a decode step of Llama-3.2-1B's shape moves, by launch.

Each distinct launch runs once in the emulator, with all its blocks and the observer `Bytes`. Its bytes are compared
with those of `--emit schedule`, and with those that must be read. Weights are zeros: their values change no address.

`python -m benchmarks.kernel_bytes` takes a few minutes and needs no GPU. `--architecture sm_80` prints the table of
another architecture.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from bringup.compile.cache.store import default_store
from bringup.compile.gpu.driver.arguments import packed
from bringup.compile.job import open_job
from bringup.compile.kernels.aot import compile_kernels
from bringup.compile.kernels.call import SCRATCH, KernelCall, Pointer
from bringup.compile.kernels.compiled import Compiled
from bringup.compile.kernels.select.registry import calls_of, split
from bringup.compile.program.export_options import layout_of
from bringup.compile.program.program import Interface
from bringup.compile.program.step_inputs import Chunk, make_step
from bringup.compile.program.trace_cached import encoded_program
from bringup.compile.ptx import Bytes, Device, Program
from bringup.compile.schedule.costs import Cost, cost_of
from bringup.compile.schedule.schedule import Launch, Schedule
from bringup.compile.targets.schedule import schedule_of
from bringup.compile.targets.selection import select
from bringup.graphs.core.step import BLOCK

PAGE = Path(__file__).parent / "results" / "2026-11-23-kernel-bytes.md"
LAYERS, CONTEXT = 16, 1024
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 128256,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "rope_scaling": {
        "factor": 32.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}


@dataclass(slots=True)
class Row:
    """One different launch: how many of it a step has, and what it moves."""

    name: str
    kernels: str
    cost: Cost
    launches: int = 0
    read: int = 0
    written: int = 0
    excess: float = 0.0  # sectors over the fewest possible, of the worst load of weights


def must_read() -> int:
    """Bytes of weights, of the caches' keys, and of a row of the embedding, by the config alone."""
    wide, inner, heads, groups, size = 2048, 8192, 32, 8, 64
    layer = wide * (2 * heads + 2 * groups) * size + 3 * wide * inner + 2 * wide
    caches = CONTEXT * 2 * groups * size
    return 2 * (LAYERS * (layer + caches) + CONFIG["vocab_size"] * wide + wide + wide)


def program_of(architecture: str, folder: Path) -> tuple[Schedule, Interface]:
    config = folder / "config.json"
    config.write_text(json.dumps(CONFIG), "utf-8")
    job = open_job(checkpoint="dummy", config=str(config), dtype="bfloat16")
    selection = select(f"cuda:{architecture}")
    layout = layout_of(job.graph, CONTEXT, (32,))
    program = encoded_program(job.graph, layout, selection.form, default_store())
    return schedule_of(program, selection.options, None, lambda graph: split(graph, architecture)), program.interface


def rows(schedule: Schedule, interface: Interface, architecture: str) -> list[Row]:
    """The launches of decode, each different one measured."""
    launches = list(schedule.launches("decode"))
    calls = {_key(launch): calls_of(launch.graph, launch.group, architecture) or () for launch in launches}
    compiled = compile_kernels((call.kernel for each in calls.values() for call in each), architecture, default_store())
    found: dict[tuple[str, int], Row] = {}
    for launch in launches:
        key = _key(launch)
        if key not in found:
            cost = cost_of(launch.graph, launch.group, CONTEXT)
            stems = " ".join(call.kernel.stem for call in calls[key])
            found[key] = Row(launch.group.name, stems, cost)
            _measure(found[key], launch, calls[key], compiled, interface)
            print(found[key], flush=True)
        found[key].launches += 1
    return list(found.values())


def _key(launch: Launch) -> tuple[str, int]:
    return launch.graph.name, next(n for n, group in enumerate(launch.graph.groups) if group is launch.group)


def _step(interface: Interface) -> Mapping[str, np.ndarray]:
    """One token at the last position."""
    return make_step(
        [Chunk([1], CONTEXT - 1, range(CONTEXT // BLOCK), 0, CONTEXT)], interface.entry("decode"), interface
    )


def _measure(
    row: Row,
    launch: Launch,
    calls: tuple[KernelCall, ...],
    compiled: Mapping[object, Compiled],
    interface: Interface,
) -> None:
    step, buffers = _step(interface), launch.graph.buffers
    names = sorted({each.buffer for call in calls for each in call.arguments if isinstance(each, Pointer)} - {SCRATCH})
    scratch = max((call.scratch for call in calls), default=0)
    device = Device(sum(buffers[name].nbytes + 8192 for name in names) + scratch + (1 << 22))
    places = {name: device.alloc(buffers[name].nbytes, name, fresh=False) for name in names}
    places[SCRATCH] = device.alloc(scratch, SCRATCH, fresh=False)
    for name in names:
        if buffers[name].kind == "step":
            device.write(places[name], np.ascontiguousarray(step[name.removeprefix("step:")]))
    for call in calls:
        each = compiled[call.kernel]
        values = [places[a.buffer] + a.offset if isinstance(a, Pointer) else a for a in call.arguments]
        arguments = packed(each.types, [*values, 0, 0])
        program = Program(each.assembly)
        run = program.launch(device, call.grid, arguments, shared=each.shared, watch=[Bytes()], exact=False)
        row.read += sum(b.read for b in run.bytes.buffers if b.name != SCRATCH)
        row.written += sum(b.written for b in run.bytes.buffers if b.name != SCRATCH)
        for access in run.bytes.accesses:
            if not access.store and access.buffer in buffers and buffers[access.buffer].kind == "weight":
                row.excess = max(row.excess, access.sectors / max(access.minimum, 1))


def report(found: list[Row], architecture: str) -> Iterator[str]:
    layer = [row for row in found if row.launches == LAYERS]
    total = sum(row.launches for row in found)
    yield f"## {architecture}"
    yield ""
    yield (
        f"{total} launches without sampling: {len(layer)} a layer and {total - LAYERS * len(layer)} more. Bytes of "
        "one launch, each byte once; sectors are those of the worst load of weights, over the fewest that could serve "
        "its requests."
    )
    yield ""
    yield "| operations | kernels | launches | read | of the schedule | written | of the schedule | sectors |"
    yield "|---|---|---|---|---|---|---|---|"
    for row in found:
        wanted = row.cost.weights + row.cost.cache + row.cost.other
        sectors = f"{row.excess:.3f}" if row.excess else "-"
        yield (
            f"| {row.name} | {row.kernels} | {row.launches} | {row.read:,} | {wanted:,} | {row.written:,} | "
            f"{row.cost.written:,} | {sectors} |"
        )
    read = sum(row.launches * row.read for row in found)
    counted = sum(row.launches * (row.cost.weights + row.cost.cache + row.cost.other) for row in found)
    must = must_read()
    yield ""
    yield (
        f"Read by a step: {read:,} bytes in the emulator, {counted:,} by the schedule ({read / counted:.4f}), "
        f"{must:,} that have to be read ({read / must:.4f}; weights once, the keys and values of {CONTEXT} tokens, a "
        "row of the embedding)."
    )
    yield ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--architecture", default="", help="print the table of one architecture")
    only = parser.parse_args().architecture
    lines: list[str] = []
    for architecture in (only,) if only else ("sm_90",):
        with TemporaryDirectory() as folder:
            schedule, interface = program_of(architecture, Path(folder))
        lines += report(rows(schedule, interface, architecture), architecture)
    if only:
        print("\n".join(lines))
        return
    head = "# Bytes of kernels: decode of Llama-3.2-1B's shape, bfloat16, batch 1, context 1024, in the emulator\n\n"
    PAGE.write_text(f"{head}{chr(10).join(lines)}\nTriton {version('triton')}.\n", "utf-8")


if __name__ == "__main__":
    main()
