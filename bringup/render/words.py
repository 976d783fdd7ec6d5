"""Numbers with units, for people."""

from __future__ import annotations

from collections.abc import Sequence

_UNITS = ("bytes", "kB", "MB", "GB", "TB")
_COUNTS = ("", "k", "M", "B", "T")


def seconds(value: float) -> str:
    """`0.01 s`, `12.3 s`, `2 min 5 s`."""
    if value < 60:
        return f"{value:.2f} s" if value < 10 else f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    return f"{minutes} min {rest} s"


def size(nbytes: float) -> str:
    """`497.8 MB`."""
    unit = 0
    while nbytes >= 1000 and unit < len(_UNITS) - 1:
        nbytes, unit = nbytes / 1000, unit + 1
    return f"{nbytes:.1f} {_UNITS[unit]}" if unit else f"{nbytes:.0f} bytes"


def count(number: float) -> str:
    """`768`, `2.4 k`, `124.4 M`, `405.9 B`."""
    unit = 0
    while number >= 1000 and unit < len(_COUNTS) - 1:
        number, unit = number / 1000, unit + 1
    return f"{number:.1f} {_COUNTS[unit]}" if unit else f"{number:.0f}"


def age(value: float) -> str:
    """`12 s`, `5 min`, `3 h`, `2 days`."""
    for unit, name in ((86400, "days"), (3600, "h"), (60, "min")):
        if value >= unit:
            return f"{value / unit:.0f} {name}"
    return f"{max(value, 0):.0f} s"


def plural(count: int, noun: str, several: str = "") -> str:
    """`1 error`, `3 errors`, `2 entries`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {several or f'{noun}s'}"


def table(rows: Sequence[tuple[str, ...]]) -> str:
    """Columns, left-aligned, two spaces apart."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    padded = (zip(row, widths, strict=True) for row in rows)
    return "\n".join("  ".join(cell.ljust(width) for cell, width in row).rstrip() for row in padded)
