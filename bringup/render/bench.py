"""Timings as a table: a line for each shape and engine, with the speed of the bundle relative to it."""

from __future__ import annotations

from typing import Any

from bringup.render.words import plural, size, table

_SHAPE = ("batch", "in", "out", "engine")
_HEADS = (*_SHAPE, "TTFT ms", "ITL p50", "p90", "p99", "tokens/s", "cpu ms/token", "/step", "of read")
_RATIOS = {"ttft": "TTFT x", "itl": "ITL x", "tokens_per_s": "tokens/s x", "step": "step x", "processor": "cpu x"}


def bench_text(report: dict[str, Any]) -> str:
    """The output of `bringup bench` for `Report.as_json`, with a newline at the end."""
    compared = any("ratios" in row for row in report["rows"])
    heads = (*_HEADS, *_RATIOS.values(), "equal") if compared else _HEADS
    rows = [_line(row, compared) for row in report["rows"]]
    engines = [(each["name"], each["dtype"], f"peak {size(each['peak_bytes'])}") for each in report["contenders"]]
    read, weights = f"{report['read_bytes_per_s'] / 1e9:.1f} GB/s", size(report["weight_bytes"])
    counts = f"{plural(report['rounds'], 'round')}, {plural(report['threads'], 'thread')}"
    last = f"{counts}; memory is read with {read}; a step reads {weights} of weights"
    return f"{table([heads, *rows])}\n\n{table(engines)}\n{last}\n"


def _line(row: dict[str, Any], compared: bool) -> tuple[str, ...]:
    share = row["bandwidth_share"]
    cells = (
        *(str(row[name]) for name in ("batch", "input", "output")),
        row["contender"],
        f"{row['ttft_ms']['p50']:.1f}",
        *(f"{row['itl_ms'][f'p{p}']:.2f}" if row["itl_ms"] else "" for p in (50, 90, 99)),
        f"{row['tokens_per_s']:.1f}",
        f"{row['processor_ms_per_token']:.2f}",
        f"{row['processor_ms_per_step']['p50']:.2f}" if row["processor_ms_per_step"] else "",
        "" if share is None else f"{share:.2f}",
    )
    if not compared:
        return cells
    ratios = row.get("ratios", {})
    found = (f"{ratios[name]:.2f}" if name in ratios else "" for name in _RATIOS)
    equal = f"{row['equal_tokens']} of {row['output']}" if "equal_tokens" in row else ""
    return (*cells, *found, equal)
