"""Times tile sizes of products and attention on a GPU, within the step that contains them.

`python -m benchmarks.tune_step --model "GPT-2 124M"` needs a GPU and no network; `--prefill 2048` times the step of a
prompt in place of that of a token. The step is one CUDA graph. The launches of one kernel get other tiles, and nothing
else changes. The fastest tiles of a kernel are used while the next ones are timed. Products and attention of prompts
are timed with the tiles of each kernel that can compute them, so one run compares the kernels.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any
from unittest.mock import patch

from benchmarks.cards.contenders import Bringup
from benchmarks.cards.rows import TIMED, Row, save
from benchmarks.tune import CHANNELS, LANES, WARPS
from bringup.compile.cache.store import default_store
from bringup.compile.gpu.driver.arguments import packed
from bringup.compile.gpu.driver.driver import Arguments
from bringup.compile.gpu.executor import GpuExecutor
from bringup.compile.gpu.kernel_plan import WAIT
from bringup.compile.gpu.ready import Start
from bringup.compile.kernels.aot import compile_kernels
from bringup.compile.kernels.call import Kernel, KernelCall
from bringup.compile.kernels.compiled import Compiled
from bringup.compile.kernels.select import attention_calls, products
from bringup.compile.kernels.select.attention_tiles import Tiles as KeyTiles
from bringup.compile.kernels.select.registry import calls_of
from bringup.compile.kernels.select.tiles import Tiles
from bringup.compile.schedule.schedule import Launch

PROMPT, MOST, DECODED = 128, 144, 100  # tokens; the step of decode that is timed is that after so many
HELD = (16, 400)  # bytes of weights that a thread has at once: least, most
SUMS = 128  # accumulators that a thread has at most
LEAST_PROGRAMS = 64
WHOLE = 64  # tiles of a row at most, where all are fetched at once
REPLAYS, ROUNDS = 30, 7
SLOW = 5000  # microseconds; of a step that takes longer, fewer replays are timed


@dataclass(frozen=True, eq=False)
class Choice:
    """The function of a selector that chooses the tiles of a kernel, and other tiles that it could choose.

    `shared`: the position of its argument with the number of matrices that divide the lanes of a tile, if it has one.
    `names`: what other names of the module are while it chooses.
    """

    module: ModuleType
    function: str
    tiles: Sequence[Any]
    shared: int | None = None
    names: Mapping[str, Any] = field(default_factory=dict[str, Any])


def _of_rows() -> Iterator[Tiles]:
    for lanes, channels, warps, together in product(LANES, CHANNELS, WARPS, (1, WHOLE)):
        yield Tiles(1, lanes, channels, warps, together=together)


def _of_prompts() -> Iterator[Tiles]:
    for rows, lanes, channels, warps, stages in product((64, 128, 256), (64, 128, 256), (32, 64), (4, 8), (3, 4)):
        if rows * lanes <= SUMS * 32 * warps:
            yield Tiles(rows, lanes, channels, warps, stages)


def _of_panels() -> Iterator[Tiles]:
    for rows, lanes, channels, warps, stages in product((128, 256), (128, 256), (64, 128), (4, 8), (3, 4, 5)):
        if rows * lanes <= SUMS * 32 * warps:
            yield Tiles(rows, lanes, channels, warps, stages)


def _of_rings() -> Iterator[Tiles]:
    """`linear_specialised` computes its own number of stages."""
    for lanes, warps in ((64, 4), (128, 4), (128, 8), (256, 8)):
        yield Tiles(128, lanes, 64, warps)


def _of_keys(rows: Sequence[int]) -> Iterator[KeyTiles]:
    for queries, keys, warps, stages in product(rows, (32, 64, 128, 256), (4, 8), (2, 3, 4)):
        yield KeyTiles(queries, keys, warps, stages)


BY_POINTERS = Choice(products, "tile", list(_of_prompts()), 4, {"PANELS": {}})
BY_ALL_WARPS = Choice(products, "panel", list(_of_panels()), 2, {"SPECIALISED": frozenset[str]()})
KEYS_BY_ALL_WARPS = Choice(
    attention_calls,
    "prefill_tiles",
    [each for each in _of_keys([64, 128]) if each.keys <= 128],
    names={"SPECIALISED": frozenset[str]()},
)
CHOICES: Mapping[str, Sequence[Choice]] = {
    "linear": [Choice(products, "gemv", list(_of_rows()))],
    "linear_tile": [BY_POINTERS],
    "linear_panels": [BY_ALL_WARPS, BY_POINTERS],
    "hopper.linear_specialised": [Choice(products, "panel", list(_of_rings()), 2), BY_ALL_WARPS, BY_POINTERS],
    "attention_decode": [Choice(attention_calls, "decode_tiles", list(_of_keys([16])))],
    "attention_prefill": [KEYS_BY_ALL_WARPS],
    "hopper.attention_specialised": [KEYS_BY_ALL_WARPS],
}
Candidate = tuple[Choice, Any]  # a choice, and tiles of it


@contextmanager
def tiles_are(choice: Choice, tiles: Any) -> Iterator[None]:
    """The selector chooses these tiles, whose lanes are divided between the matrices of a product."""

    def fixed(*given: Any) -> Any:
        return tiles if choice.shared is None else replace(tiles, lanes=tiles.lanes // given[choice.shared])

    with ExitStack() as stack:
        for name, value in {**choice.names, choice.function: fixed}.items():
            stack.enter_context(patch.object(choice.module, name, value))
        yield


@dataclass(frozen=True)
class Timed:
    """A kernel, its tiles, the programs of its launches, all launches of the step, and its microseconds."""

    stem: str
    tiles: Any
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
    replays = REPLAYS
    for _ in range(rounds):
        begin, end = driver.event(), driver.event()
        driver.record(begin, stream)
        for _ in range(replays):
            driver.replay(graphs[0], stream)
        driver.record(end, stream)
        driver.wait(stream)
        times.append(driver.seconds(begin, end) / replays * 1e6)
        replays = 3 if times[-1] > SLOW else REPLAYS
    return statistics.median(times)


def candidates(launch: Launch, stem: str, capability: str) -> dict[Candidate, KernelCall]:
    """A call for each tile size that fits, no kernel twice."""
    found: dict[Candidate, KernelCall] = {}
    seen: set[Kernel] = set()
    for choice in CHOICES[stem]:
        for tiles in choice.tiles:
            with tiles_are(choice, tiles):
                (call,) = calls_of(launch.graph, launch.group, capability) or ()
            if call.kernel not in seen and (stem != "linear" or _fits(call, tiles)):
                seen.add(call.kernel)
                found[choice, tiles] = call
    return found


def _fits(call: KernelCall, tiles: Tiles) -> bool:
    """Whether a product of one row has enough programs, and each thread as many bytes of weights as is sensible."""
    constants = {name: int(value or 0) for name, value in call.kernel.constants if not isinstance(value, str)}
    held = constants["BN"] * constants["BK"] * constants["TILES"] * 2 * (1 + constants["PAIR"]) / (32 * tiles.warps)
    return HELD[0] <= held <= HELD[1] and call.grid[0] >= LEAST_PROGRAMS


def started(executor: GpuExecutor, entry: str, launch: Launch, call: KernelCall, own: Compiled) -> Start:
    """A call of a kernel that is not of the bundle, on the buffers of a launch."""
    driver, ready = executor._driver, executor._entries[entry]
    sizes = {"threads": own.threads, "shared": own.shared, "waits": WAIT in own.assembly}
    function = driver.function(driver.load(own.binary), own.name, **sizes)
    values = [executor._value(launch, operand, entry, ready.staging) for operand in call.arguments]
    values += [executor._global_scratch if own.global_scratch_size else 0, 0]
    return Start(launch.group.name, 0, function, call.grid, Arguments(packed(own.types, values)))


def _has_memory(executor: GpuExecutor, call: KernelCall, own: Compiled) -> bool:
    """Whether a call fits the shared memory of the device and the scratch memory of the executor."""
    plan, own_scratch = executor._plan, own.global_scratch_size * math.prod(call.grid)
    fits = own.shared <= executor._driver.shared_limit and call.scratch <= plan.scratch
    return fits and own_scratch <= plan.global_scratch


def tuned(executor: GpuExecutor, entry: str, capability: str, best: int) -> None:
    """Prints the fastest tiles of each kernel of a step."""
    executor._driver.use()
    starts, launches = list(executor._entries[entry].starts), list(executor._schedule.launches(entry))
    now = microseconds(executor, starts)
    print(f"{entry}: {now:.1f} us, {len(starts)} launches")
    alike: dict[Kernel, list[int]] = {}
    for number, launch in enumerate(launches):
        (call,) = calls_of(launch.graph, launch.group, capability) or ()
        if call.kernel.stem in CHOICES:
            alike.setdefault(call.kernel, []).append(number)
    for kernel, numbers in alike.items():
        launch, found = launches[numbers[0]], list[Timed]()
        calls = candidates(launch, kernel.stem, capability)
        compiled = compile_kernels((call.kernel for call in calls.values()), capability, default_store())
        for (choice, tiles), call in calls.items():
            own, others = compiled[call.kernel], list(starts)
            if not _has_memory(executor, call, own):
                continue
            for number in numbers:
                with tiles_are(choice, tiles):
                    (same,) = calls_of(launches[number].graph, launches[number].group, capability) or ()
                others[number] = started(executor, entry, launches[number], same, own)
            found.append(Timed(call.kernel.stem, tiles, call.grid[0], others, microseconds(executor, others, 3)))
        found.sort(key=lambda each: each.microseconds)
        print(f"{launch.group.name}: {now:.1f} us, {len(numbers)} launches, {len(found)} candidates")
        for each in found[:best]:
            gain = (now - each.microseconds) / len(numbers)
            what = f"{each.stem}, {each.tiles}, {each.programs} programs"
            print(f"  {what}: {each.microseconds:.1f} us, {gain:+.2f} a launch")
        again = min(found[:3], key=lambda each: microseconds(executor, each.starts))
        if (taken := microseconds(executor, again.starts)) < now:
            now, starts = taken, again.starts
            print(f"  taken: {again.stem}, {again.tiles}, {now:.1f} us", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tune_step", description=__doc__)
    rows: dict[str, Row] = {row.name: row for row in TIMED}
    parser.add_argument("--model", choices=rows, action="append", default=[])
    parser.add_argument("--layers", type=int, help="of the model, in place of its own")
    parser.add_argument("--prefill", type=int, help="time the step of a prompt of so many tokens")
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
            places, prompt = (Path(folder, "checkpoint"), Path(folder, "bundle")), given.prefill or PROMPT
            ours = Bringup(*places, given.capability, prompt, MOST)
            with ours.session:
                ours.tokens(1 if given.prefill else DECODED)
                executor = ours.session.executor
                assert isinstance(executor, GpuExecutor)
                print(f"== {name}")
                tuned(executor, f"prefill_{prompt}" if given.prefill else "decode", given.capability, given.best)


if __name__ == "__main__":
    main()
