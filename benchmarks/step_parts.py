"""Times the parts of a greedy decode step on a GPU: launches, sampling, events, gaps between graphs, and the host.

`python -m benchmarks.step_parts --model "GPT-2 124M"` needs a GPU and no network. All rows of the table run the same
steps, in turns. Rows with several steps in one graph show what the gap between two graphs costs.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.cards.contenders import Bringup
from benchmarks.cards.rows import TIMED, Row, save
from benchmarks.cards.speed import in_turns
from bringup.compile.gpu.driver.driver import Event, Graph
from bringup.compile.gpu.executor import GpuExecutor
from bringup.compile.gpu.ready import Start

ENTRY = "decode"
STEPS = 160  # of a measurement: a multiple of each of TOGETHER
TOGETHER = (2, 4, 8)  # steps in one graph
FIRST = 3  # tokens of a session after which the settings of greedy sampling are on the device


class Parts:
    """The rows of the table for a session, whose bundle has room for STEPS tokens after the prompt."""

    def __init__(self, ours: Bringup) -> None:
        ours.tokens(FIRST)
        executor = ours.session.executor
        assert isinstance(executor, GpuExecutor)
        self._ours, self._driver, self._stream = ours, executor._driver, executor._stream
        self._driver.use()
        self._ready = executor._entries[ENTRY]
        assert self._ready.draws is not None
        self.draws = self._ready.draws
        self._driver.wait(self._stream)

    def rows(self) -> Mapping[str, Callable[[], float]]:
        """What measures each row, in microseconds of a step."""
        drawn = self._ready.draw_starts
        together = {
            f"sampled, {count} steps in a graph": partial(self.replayed, self.graph([drawn[0]] * count), count)
            for count in TOGETHER
        }
        sampled = self.graph(drawn[:1])
        return {
            "logits only": partial(self.replayed, self.graph([self._ready.starts])),
            "sampled": partial(self.replayed, sampled),
            **together,
            "sampled, an event after each": partial(self.replayed, sampled, event=self._driver.event(timed=False)),
            "sampled, a timed event after each": partial(self.replayed, sampled, event=self._driver.event()),
            "sampled, the host waits for each": partial(self.awaited, [self.graph([each]) for each in drawn]),
            "a session": self.session,
        }

    def graph(self, steps: Sequence[Sequence[Start]]) -> Graph:
        """A graph of these steps. All launches but the first one of each step may start early.

        That one waits for the end of the previous step, whose last launch writes the fields of this one: other launches
        read them before they wait.
        """
        with self._driver.capture(self._stream) as graphs:
            for step in steps:
                for number, start in enumerate(step):
                    self._driver.launch(start.function, start.grid, start.arguments, self._stream, early=number > 0)
        return graphs[0]

    def replayed(self, graph: Graph, count: int = 1, event: Event | None = None) -> float:
        """Of a graph that has `count` steps, by the clock of the device. The event is recorded after each graph."""
        driver, stream = self._driver, self._stream
        with self._ended(driver.event(), driver.event()) as (begin, end):
            self._rewind()
            driver.record(begin, stream)
            for _ in range(STEPS // count):
                driver.replay(graph, stream)
                if event is not None:
                    driver.record(event, stream)
            driver.record(end, stream)
            driver.wait(stream)
            return driver.seconds(begin, end) / STEPS * 1e6

    def awaited(self, graphs: Sequence[Graph]) -> float:
        """By the clock of the host, which starts each step and then waits for the previous one, as a session does."""
        driver, stream = self._driver, self._stream
        with self._ended(driver.event(timed=False), driver.event(timed=False)) as events:
            self._rewind()
            driver.wait(stream)
            start = time.perf_counter()
            for number in range(STEPS):
                driver.replay(graphs[number % 2], stream)
                driver.record(events[number % 2], stream)
                driver.wait_for(events[1 - number % 2])
            driver.wait(stream)
            return (time.perf_counter() - start) / STEPS * 1e6

    def session(self) -> float:
        """By the clock of the host: the difference of two runs, so that the prompt cancels."""
        return (self._ours.seconds(STEPS) - self._ours.seconds(FIRST)) / (STEPS - FIRST) * 1e6

    @contextmanager
    def _ended(self, *events: Event) -> Generator[Sequence[Event]]:
        yield events
        for event in events:
            self._driver.forget(event)

    def _rewind(self) -> None:
        """Copies the fields of the first step to the device: sampling has advanced them."""
        self._ready.staging.copy_in(self._driver, self._stream)


def table(times: Mapping[str, Sequence[float]]) -> str:
    lines = ["| step | us: median [least - most] |", "|---|--:|"]
    for name, found in times.items():
        lines.append(f"| {name} | {statistics.median(found):.1f} [{min(found):.1f} - {max(found):.1f}] |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.step_parts", description=__doc__)
    rows: dict[str, Row] = {row.name: row for row in TIMED}
    parser.add_argument("--model", choices=rows, action="append", default=[])
    parser.add_argument("--capability", default="sm_90")
    given = parser.parse_args()
    for name in given.model or rows:
        row = rows[name]
        with TemporaryDirectory() as folder:
            save(row, f"{folder}/checkpoint", "bfloat16", "cuda")
            places = Path(folder, "checkpoint"), Path(folder, "bundle")
            ours = Bringup(*places, given.capability, row.prompt, STEPS + FIRST)
            with ours.session:
                print(f"## {name}\n\n{table(in_turns(Parts(ours).rows()))}\n", flush=True)


if __name__ == "__main__":
    main()
