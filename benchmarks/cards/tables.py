"""The results as Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

LOGITS, SAMPLED = "logits", "sampled tokens"  # the rows of whole models


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
    """A line for each model and dtype, with the launch that is nearest to its limit, and each row past its limit."""
    compared = [row for row in rows if "not run" not in row]
    wrong = [row for row in compared if not row["ok"]]
    head = [
        f"{len(compared)} comparisons, {len(wrong)} past their limit. Launches: the largest difference from float64 "
        "over the largest number, and the launch that has it. Logits: from transformers in float32. The JSON file has "
        "every launch.",
        "",
        "| model | dtype | launches | largest difference | limit | logits | limit | sampled tokens that differ |",
        "|---|---|---|---|---|---|---|---|",
    ]
    models: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        models.setdefault((row["model"], row["dtype"]), []).append(row)
    lines = [f"| {model} | {dtype} | {_of_model(found)} |" for (model, dtype), found in models.items()]
    past = [
        f"- {row['model']}, {row['dtype']}: {row['what']} ({row['kernels']}), {row['error']:.1e} of {row['limit']:.0e}"
        for row in wrong
    ]
    return "\n".join(head + lines + (["", "Past their limit:", "", *past] if past else []))


def _of_model(rows: Sequence[Mapping[str, Any]]) -> str:
    for row in rows:
        if reason := row.get("not run"):
            return f"not run: {reason} | | | | |"
    whole = {row["what"]: row for row in rows if row["what"] in (LOGITS, SAMPLED)}  # a run may have ended before them
    launches = [row for row in rows if row["what"] not in whole]
    worst = max(launches, key=lambda row: row["error"])
    cells = [str(len(launches)), f"{worst['error']:.1e}: {worst['what']}", f"{worst['limit']:.0e}"]
    cells += [f"{whole[LOGITS][key]:.1e}" if LOGITS in whole else "" for key in ("error", "limit")]
    cells.append(f"{whole[SAMPLED]['error']:.0f}" if SAMPLED in whole else "")
    return " | ".join(cells)


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
