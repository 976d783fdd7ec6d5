"""Times tile sizes of products with one row on a GPU. Candidates are compiled and launched as those of a bundle are.

`python -m benchmarks.tune --model Llama-3-8B` needs a GPU and no network. The weights are those of several layers in
turn, more than the L2 cache holds. Launches are one CUDA graph, so a time includes the boundary between two kernels.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from benchmarks.cards.rows import TIMED, Row
from bringup.compile.cache.store import default_store
from bringup.compile.gpu.driver.arguments import packed
from bringup.compile.gpu.driver.cuda import CudaDriver
from bringup.compile.gpu.driver.driver import Address, Arguments
from bringup.compile.gpu.kernel_plan import WAIT
from bringup.compile.gpu.opening import driver_module
from bringup.compile.job import open_job
from bringup.compile.kernels.aot import compile_kernels
from bringup.compile.kernels.call import SCRATCH, Kernel, KernelCall, Pointer
from bringup.compile.kernels.compiled import Compiled
from bringup.compile.kernels.select import products
from bringup.compile.kernels.select.registry import calls_of, split
from bringup.compile.kernels.select.tiles import Tiles
from bringup.compile.program.export_options import layout_of
from bringup.compile.program.trace_cached import encoded_program
from bringup.compile.schedule.costs import cost_of
from bringup.compile.schedule.schedule import Launch
from bringup.compile.targets.schedule import schedule_of
from bringup.compile.targets.selection import select

CONTEXT = 1024
LANES, CHANNELS, WARPS = (1, 2, 4, 8, 16, 32), (128, 256, 512, 1024, 2048, 4096), (1, 2, 4, 8)
LOADS = (1, 16)  # of 16 bytes, of each thread and matrix in a turn of the loop: at least, at most
CYCLED = 256 << 20  # bytes of weights that the launches of a graph go through
ROUNDS = 7


@dataclass(frozen=True)
class Timed:
    """A candidate: its tiles (None for those that are chosen) and the microseconds of a launch."""

    tiles: Tiles | None
    microseconds: float


def launches_of(row: Row, capability: str) -> list[Launch]:
    """The different launches of `linear` in decode."""
    from transformers import AutoConfig

    with TemporaryDirectory() as folder:
        AutoConfig.for_model(row.kind, **row.settings, architectures=[ARCHITECTURES[row.kind]]).save_pretrained(folder)
        job = open_job(checkpoint="dummy", config=str(Path(folder) / "config.json"), dtype="bfloat16")
        selection = select(f"cuda:{capability}")
        program = encoded_program(job.graph, layout_of(job.graph, CONTEXT, (32,)), selection.form, default_store())
    schedule = schedule_of(program, selection.options, None, lambda graph: split(graph, capability))
    found: dict[tuple[str, str], Launch] = {}
    for launch in schedule.launches("decode"):
        calls = calls_of(launch.graph, launch.group, capability) or ()
        if any(call.kernel.stem == "linear" for call in calls):
            found.setdefault((launch.graph.name, launch.group.name + str(launch.group.nodes[0].outputs)), launch)
    return list(found.values())


ARCHITECTURES = {"gpt2": "GPT2LMHeadModel", "llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM"}


@contextmanager
def tiles_are(tiles: Tiles | None) -> Iterator[None]:
    """Products of one row have these tiles."""
    chosen = products.gemv

    def fixed(lanes: int, channels: int, dtype: str, accumulators: int, norm: bool) -> Tiles:
        assert tiles is not None
        return tiles

    if tiles is not None:
        products.gemv = fixed
    try:
        yield
    finally:
        products.gemv = chosen


def candidates(launch: Launch, capability: str) -> dict[Tiles | None, KernelCall]:
    """The chosen call, and one for each tile size that fits."""
    found: dict[Tiles | None, KernelCall] = {}
    seen: set[Kernel] = set()
    for tiles in (None, *(Tiles(1, *sizes) for sizes in product(LANES, CHANNELS, WARPS))):
        with tiles_are(tiles):
            calls = calls_of(launch.graph, launch.group, capability) or ()
        if len(calls) != 1 or calls[0].kernel in seen:
            continue
        constants = dict(calls[0].kernel.constants)
        width, warps = int(constants["BN"] or 0) * int(constants["BK"] or 0), calls[0].kernel.num_warps
        if tiles and not LOADS[0] <= width / (8 * 32 * warps) <= LOADS[1]:
            continue
        if tiles and int(constants["BK"] or 0) > 2 * int(constants["K"] or 0):
            continue
        seen.add(calls[0].kernel)
        found[tiles] = calls[0]
    return found


class Card:
    """A card with memory for the buffers of one launch after the other."""

    def __init__(self) -> None:
        self.driver = CudaDriver(driver_module())
        self.driver.use()
        self.stream = self.driver.stream()
        self.random = self.driver.pinned(64 << 20)
        numbers = np.random.default_rng(0).normal(0, 0.02, len(self.random) // 4).astype(np.float32)
        self.random.view(np.uint16)[:] = np.repeat(numbers.view(np.uint32) >> 16, 2).astype(np.uint16)

    def filled(self, nbytes: int, name: str, zero: bool) -> Address:
        address = self.driver.allocate(nbytes, name)
        if zero:
            self.driver.zero(address, nbytes, self.stream)
            return address
        for begin in range(0, nbytes, len(self.random)):
            self.driver.copy_in(address + begin, self.random[: min(len(self.random), nbytes - begin)], self.stream)
        return address

    def places(self, launch: Launch) -> tuple[list[Mapping[str, Address]], list[Address]]:
        """The address of each buffer, for each set of weights; and what is to be freed."""
        buffers = launch.graph.buffers
        shared = {name: b for name, b in buffers.items() if b.kind != "weight"}
        weights = {name: b for name, b in buffers.items() if b.kind == "weight" and name in launch.group.inputs}
        nbytes = sum(buffer.nbytes for buffer in weights.values())
        fixed = {name: self.filled(b.nbytes, name, "int" in b.dtype or b.kind == "state") for name, b in shared.items()}
        fixed[SCRATCH] = self.filled(1 << 24, SCRATCH, True)
        sets = [
            {**fixed, **{name: self.filled(b.nbytes, name, False) for name, b in weights.items()}}
            for _ in range(max(2, min(64, CYCLED // nbytes)))
        ]
        self.driver.wait(self.stream)
        return sets, sorted({address for each in sets for address in each.values()})

    def time(self, call: KernelCall, compiled: Compiled, sets: list[Mapping[str, Address]]) -> float:
        """Microseconds of a launch, the median of rounds."""
        module = self.driver.load(compiled.binary)
        sizes = {"threads": compiled.threads, "shared": compiled.shared}
        function = self.driver.function(module, compiled.name, **sizes, waits=WAIT in compiled.assembly)
        arguments = []
        for places in sets:
            values = [places[a.buffer] + a.offset if isinstance(a, Pointer) else a for a in call.arguments]
            arguments.append(Arguments(packed(compiled.types, [*values, 0, 0])))
        count = max(32, len(sets))
        with self.driver.capture(self.stream) as graphs:
            for number in range(count):
                self.driver.launch(function, call.grid, arguments[number % len(sets)], self.stream, early=number > 0)
        times: list[float] = []
        for _ in range(ROUNDS):
            begin, end = self.driver.event(), self.driver.event()
            self.driver.record(begin, self.stream)
            self.driver.replay(graphs[0], self.stream)
            self.driver.record(end, self.stream)
            self.driver.wait(self.stream)
            times.append(self.driver.seconds(begin, end) / count * 1e6)
        return statistics.median(times)


def timed(card: Card, launch: Launch, capability: str) -> list[Timed]:
    """All candidates of a launch, the fastest first."""
    calls = candidates(launch, capability)
    compiled = compile_kernels((call.kernel for call in calls.values()), capability, default_store())
    sets, held = card.places(launch)
    found = [Timed(tiles, card.time(call, compiled[call.kernel], sets)) for tiles, call in calls.items()]
    for address in held:
        card.driver.free(address)
    return sorted(found, key=lambda each: each.microseconds)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tune", description=__doc__)
    rows = {row.name: row for row in TIMED}
    parser.add_argument("--model", choices=rows, action="append", default=[])
    parser.add_argument("--capability", default="sm_90")
    parser.add_argument("--best", type=int, default=10, help="how many candidates are printed")
    given = parser.parse_args()
    card = Card()
    for name in given.model or rows:
        for launch in launches_of(rows[name], given.capability):
            nbytes = cost_of(launch.graph, launch.group, CONTEXT).nbytes
            found = timed(card, launch, given.capability)
            print(f"{name}: {launch.group.name}, {nbytes:,} bytes, {len(found)} candidates")
            for each in [*found[: given.best], *(one for one in found if one.tiles is None)]:
                tiles = each.tiles
                sizes = f"{tiles.lanes} x {tiles.channels}, {tiles.warps} warps" if tiles else "chosen"
                print(f"  {sizes:26} {each.microseconds:8.2f} us {nbytes / each.microseconds / 1e3:7.0f} GB/s")
            print(flush=True)


if __name__ == "__main__":
    main()
