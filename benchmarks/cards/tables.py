"""The results as Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def markdown(results: Mapping[str, Any]) -> str:
    """What ran where, then a table for each part that was run."""
    about = ", ".join(f"{name} {value}" for name, value in results["about"].items())
    parts = [f"# Kernels and models on {results['device']}", about]
    if found := results.get("correctness"):
        parts += ["## Correctness", _correctness(found)]
    if found := results.get("speed"):
        parts += ["## Speed", _speed(found)]
    return "\n\n".join(parts) + "\n"


def _correctness(rows: Sequence[Mapping[str, Any]]) -> str:
    compared = [row for row in rows if "not run" not in row]
    wrong = sum(not row["ok"] for row in compared)
    head = [
        f"{len(compared)} comparisons, {wrong} past their limit. Launches: the largest difference from float64 over "
        "the largest number. Logits: from transformers in float32.",
        "",
        "| model | dtype | what | kernels | error | limit | |",
        "|---|---|---|---|---|---|---|",
    ]
    lines = [
        f"| {row['model']} | {row['dtype']} | not run: {row['not run']} | | | | |"
        if "not run" in row
        else f"| {row['model']} | {row['dtype']} | {row['what']} | {row['kernels']} | {row['error']:.1e} | "
        f"{row['limit']:.0e} | {'' if row['ok'] else 'WRONG'} |"
        for row in rows
    ]
    return "\n".join(head + lines)


def _speed(rows: Sequence[Mapping[str, Any]]) -> str:
    head = [
        "Microseconds a token (prefill: to the first token), median [least - most]. The floor is the time of the bytes "
        "read at the rate of a read and of those written at the rate of a copy, or of the operations at the rate of a "
        "product, all measured just before the row.",
        "",
        "| row | read GB/s | floor | bringup | of floor | transformers | torch.compile | launches | equal tokens |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    return "\n".join(head + [_line(row) for row in rows])


def _line(row: Mapping[str, Any]) -> str:
    if reason := row.get("not run"):
        return f"| {row['row']} | not run: {reason} | | | | | | | |"
    times = {name: _spread(found) for name, found in row["us"].items()}
    equal = ", ".join(f"{name} {count}" for name, count in row["equal tokens"].items() if name != "bringup")
    times |= row.get("failed", {})
    return (
        f"| {row['row']} | {row['read GB/s']:,.0f} | {row['floor us']:,.1f} | {times['bringup']} | "
        f"{row['share of floor']:.0%} | {times.get('transformers', '')} | {times.get('torch.compile', '')} | "
        f"{row['launches']} | {equal} |"
    )


def _spread(found: Mapping[str, Any]) -> str:
    return f"{found['median']:,.1f} [{min(found['all']):,.1f} - {max(found['all']):,.1f}]"
