"""Times on a GPU: decode and prefill of bringup, transformers and torch.compile in turns, and the limits of the GPU."""

from __future__ import annotations

import gc
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.cards.contenders import Bringup, Contender, TorchCompile, Transformers
from benchmarks.cards.failures import FAILURES, reason
from benchmarks.cards.rows import PREFILL, TIMED, Row, save
from benchmarks.figures import agreed

SHORT, LONG = 16, 144  # new tokens of the two runs whose difference is timed
ROUNDS, WARM = 5, 2
DEVICE = "cuda"  # where random weights are drawn, and ceilings measured
COPIED = 2 << 30  # bytes
PRODUCT = 8192


def ceilings() -> dict[str, float]:
    """What this card does now: GB/s of a copy (read and written) and of a read, TFLOP/s of a bfloat16 product."""
    import torch

    source = torch.randn(COPIED // 4, device=DEVICE)
    target = torch.empty_like(source)
    left = torch.randn(PRODUCT, PRODUCT, device=DEVICE, dtype=torch.bfloat16)
    right = torch.randn_like(left)
    works = {
        "copy GB/s": (lambda: target.copy_(source), 2 * COPIED / 1e9),
        "read GB/s": (lambda: source.sum(), COPIED / 1e9),
        "bf16 TFLOP/s": (lambda: left @ right, 2 * PRODUCT**3 / 1e12),
    }
    return {name: amount / _median(work) for name, (work, amount) in works.items()}


def _median(work: Any) -> float:
    """Seconds of one call, by events of the card."""
    import torch

    times: list[float] = []
    for number in range(WARM + 20):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        end.record()
        torch.cuda.synchronize()
        if number >= WARM:
            times.append(begin.elapsed_time(end) / 1e3)
    return statistics.median(times)


def rows(capability: str, names: Sequence[str], budget: float) -> Iterator[dict[str, Any]]:
    """A row for each model that is begun within so many seconds; the others are listed as not run."""
    begin = time.perf_counter()
    for row in (*TIMED, PREFILL):
        if names and row.name not in names:
            continue
        if time.perf_counter() - begin > budget:
            yield {"row": row.name, "not run": f"the {budget:.0f} seconds of this part were over"}
            continue
        with tempfile.TemporaryDirectory() as folder:
            try:
                yield _of_row(row, capability, Path(folder))
            except FAILURES as error:
                yield {"row": row.name, "not run": reason(error)}
        forget()


def forget() -> None:
    """Gives back what torch holds of the row before: compiled graphs, and memory of the card."""
    import torch

    torch._dynamo.reset()
    gc.collect()
    torch.cuda.empty_cache()


def _of_row(row: Row, capability: str, folder: Path) -> dict[str, Any]:
    limits = ceilings()
    forget()
    save(row, str(folder / "checkpoint"), "bfloat16", DEVICE)
    forget()
    is_prefill = row is PREFILL
    with ExitStack() as opened:
        ours = Bringup(folder / "checkpoint", folder / "bundle", capability, row.prompt, LONG)
        opened.enter_context(ours.session)
        contenders: dict[str, Contender] = {"bringup": ours}
        answers, failed = {"bringup": ours.tokens(LONG)}, dict[str, str]()
        others: dict[str, type[Transformers]] = {"transformers": Transformers}
        if row.compiled and not is_prefill:
            others["torch.compile"] = TorchCompile
        for name, other in others.items():
            try:
                each = other(folder / "checkpoint", row.prompt, LONG)
                answers[name], contenders[name] = each.tokens(LONG), each
            except FAILURES as error:
                failed[name] = reason(error)
        timed = _first if is_prefill else _each
        times = in_turns({name: partial(timed, each) for name, each in contenders.items()})
        keys = row.prompt if is_prefill else row.prompt + (SHORT + LONG) // 2
        facts = ours.facts(f"prefill_{row.prompt}" if is_prefill else "decode", keys)
    floor = floor_of(facts, limits)
    medians = {name: statistics.median(found) for name, found in times.items()}
    return {
        "row": row.name,
        "what": "prefill" if is_prefill else "decode",
        **limits,
        **facts,
        "floor us": floor,
        "goal us (H200)": row.goal,
        "us": {name: {"median": medians[name], "all": found} for name, found in times.items()},
        "failed": failed,
        "share of floor": floor / medians["bringup"],
        "times faster": {name: value / medians["bringup"] for name, value in medians.items() if name != "bringup"},
        "equal tokens": {name: agreed(answers["bringup"], found) for name, found in answers.items()},
        "compile seconds": ours.compile_seconds,
        "bundle to first token seconds": ours.start_seconds,
    }


def in_turns(work: Mapping[str, Callable[[], float]]) -> dict[str, list[float]]:
    """What each work gives in `ROUNDS` rounds, of which each begins with another one."""
    found: dict[str, list[float]] = {name: [] for name in work}
    for number in range(ROUNDS):
        order = list(work)
        for name in order[number % len(order) :] + order[: number % len(order)]:
            found[name].append(work[name]())
    return found


def floor_of(facts: Mapping[str, int], limits: Mapping[str, float]) -> float:
    """Microseconds: what is read at the rate of a read and what is written at that of a copy, or the operations."""
    moved = facts["read"] / limits["read GB/s"] + facts["written"] / limits["copy GB/s"]
    return max(moved / 1e3, facts["flops"] / limits["bf16 TFLOP/s"] / 1e6)


def _each(contender: Contender) -> float:
    """Microseconds of a token: the difference of two runs, so that the prompt cancels."""
    return (contender.seconds(LONG) - contender.seconds(SHORT)) / (LONG - SHORT) * 1e6


def _first(contender: Contender) -> float:
    return contender.seconds(1) * 1e6
