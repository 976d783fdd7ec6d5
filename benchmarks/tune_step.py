"""Times tile sizes of products with one row on a GPU, within the decode step that contains the product.

`python -m benchmarks.tune_step --model "GPT-2 124M"` needs a GPU and no network. The step is one CUDA graph. The
launches of one product get other tiles, and nothing else changes. The fastest tiles of a product are used while the
next ones are timed.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.cards.contenders import Bringup
from benchmarks.cards.rows import TIMED, Row, save
from benchmarks.tune import CHANNELS, LANES, WARPS, tiles_are
from bringup.compile.cache.store import default_store
from bringup.compile.gpu.executor import GpuExecutor
from bringup.compile.gpu.kernel_plan import WAIT
from bringup.compile.gpu.ready import Start
from bringup.compile.kernels.aot import compile_kernels
from bringup.compile.kernels.call import Kernel, KernelCall
from bringup.compile.kernels.select.registry import calls_of
from bringup.compile.kernels.select.tiles import Tiles
from bringup.compile.schedule.schedule import Launch

PROMPT, MOST, DECODED = 128, 144, 100  # tokens; the step that is timed is that after so many
HELD = (16, 400)  # bytes of weights that a thread has at once: least, most
LEAST_PROGRAMS = 64
WHOLE = 64  # tiles of a row at most, where all are fetched at once
REPLAYS, ROUNDS = 30, 7


@dataclass(frozen=True)
class Timed:
    """Tiles of a product, the programs of its launches, all launches of the step, and its microseconds."""

    tiles: Tiles
    programs: int
    starts: list[Start]
    microseconds: float


def microseconds(executor: GpuExecutor, starts: Sequence[Start], rounds: int = ROUNDS) -> float:
    """Of a step that has these launches, replayed one after the other; the median of rounds."""
    driver, stream = executor._driver, executor._stream
    with driver.capture(stream) as graphs:
        for number, start in enumerate(starts):
            driver.launch(start.function, start.grid, start.arguments, stream, early=number > 0)
    times: list[float] = []
    for _ in range(rounds):
        begin, end = driver.event(), driver.event()
        driver.record(begin, stream)
        for _ in range(REPLAYS):
            driver.replay(graphs[0], stream)
        driver.record(end, stream)
        driver.wait(stream)
        times.append(driver.seconds(begin, end) / REPLAYS * 1e6)
    return statistics.median(times)


def candidates(launch: Launch, capability: str) -> dict[Tiles, KernelCall]:
    """A call for each tile size that fits, no kernel twice."""
    found: dict[Tiles, KernelCall] = {}
    seen: set[Kernel] = set()
    for lanes, channels, warps, together in product(LANES, CHANNELS, WARPS, (1, WHOLE)):
        tiles = Tiles(1, lanes, channels, warps, together=together)
        with tiles_are(tiles):
            (call,) = calls_of(launch.graph, launch.group, capability) or ()
        constants = {name: int(value or 0) for name, value in call.kernel.constants if not isinstance(value, str)}
        held = constants["BN"] * constants["BK"] * constants["TILES"] * 2 * (1 + constants["PAIR"]) / (32 * warps)
        if call.kernel not in seen and HELD[0] <= held <= HELD[1] and call.grid[0] >= LEAST_PROGRAMS:
            seen.add(call.kernel)
            found[tiles] = call
    return found


def tuned(executor: GpuExecutor, capability: str, best: int) -> None:
    """Prints the fastest tiles of each product of a step."""
    starts, launches = list(executor._entries["decode"].starts), list(executor._schedule.launches("decode"))
    driver, now = executor._driver, microseconds(executor, starts)
    alike: dict[Kernel, list[int]] = {}
    for number, launch in enumerate(launches):
        (call,) = calls_of(launch.graph, launch.group, capability) or ()
        if call.kernel.stem == "linear":
            alike.setdefault(call.kernel, []).append(number)
    for numbers in alike.values():
        launch, found = launches[numbers[0]], list[Timed]()
        calls = candidates(launch, capability)
        compiled = compile_kernels((call.kernel for call in calls.values()), capability, default_store())
        for tiles, call in calls.items():
            own, others = compiled[call.kernel], list(starts)
            sizes = {"threads": own.threads, "shared": own.shared, "waits": WAIT in own.assembly}
            function = driver.function(driver.load(own.binary), own.name, **sizes)
            for number in numbers:
                others[number] = replace(starts[number], function=function, grid=call.grid)
            found.append(Timed(tiles, call.grid[0], others, microseconds(executor, others, 3)))
        found.sort(key=lambda each: each.microseconds)
        print(f"{launch.group.name}: {now:.1f} us, {len(numbers)} launches, {len(found)} candidates")
        for each in found[:best]:
            gain = (now - each.microseconds) / len(numbers)
            print(f"  {each.tiles}, {each.programs} programs: {each.microseconds:.1f} us, {gain:+.2f} a launch")
        again = min(found[:3], key=lambda each: microseconds(executor, each.starts))
        if (taken := microseconds(executor, again.starts)) < now:
            now, starts = taken, again.starts
            print(f"  taken: {again.tiles}, {now:.1f} us", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tune_step", description=__doc__)
    rows: dict[str, Row] = {row.name: row for row in TIMED}
    parser.add_argument("--model", choices=rows, action="append", default=[])
    parser.add_argument("--layers", type=int, help="of the model, in place of its own")
    parser.add_argument("--capability", default="sm_90")
    parser.add_argument("--best", type=int, default=7, help="how many candidates are printed")
    given = parser.parse_args()
    for name in given.model or rows:
        row = rows[name]
        if given.layers:
            key = "n_layer" if row.kind == "gpt2" else "num_hidden_layers"
            row = replace(row, settings=row.settings | {key: given.layers})
        with TemporaryDirectory() as folder:
            save(row, f"{folder}/checkpoint", "bfloat16", "cuda")
            ours = Bringup(Path(folder, "checkpoint"), Path(folder, "bundle"), given.capability, PROMPT, MOST)
            with ours.session:
                ours.tokens(DECODED)
                executor = ours.session.executor
                assert isinstance(executor, GpuExecutor)
                print(f"== {name}")
                tuned(executor, given.capability, given.best)


if __name__ == "__main__":
    main()
