"""A report as text: findings, errors first, and a summary line."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from operator import itemgetter

from bringup.diagnostics import Diagnostic, Report, Severity
from bringup.render.severity import ordered
from bringup.render.terminal import Paint
from bringup.render.visible import harmless
from bringup.render.words import plural, size


def findings_text(findings: Iterable[Diagnostic], paint: Paint) -> str:
    """Every finding in detail, followed by an empty line; "" without findings."""
    listed = ordered(findings)
    if not listed:
        return ""
    from bringup.render.finding import finding_text  # parses source files

    return "".join(f"{finding_text(harmless(finding), paint)}\n\n" for finding in listed)


def summary(report: Report, paint: Paint) -> str:
    """`gpt2: 149 parameters, 160 tensors, 148 read, 12 dropped — fits`, or `gpt2: 3 errors`."""
    label = f"{report.model}: " if report.model else ""
    message = tally(report.findings)
    if not report.ok:
        return label + paint(message, "red")
    counts = report.counts
    facts = [plural(counts["parameters"], "parameter"), plural(counts["tensors"], "tensor")]
    facts += [f"{counts['consumed']:,} read", f"{counts['dropped']:,} dropped"]
    return f"{label}{', '.join(facts)} — {paint('fits', 'green')}{f' ({message})' if message else ''}"


def tally(findings: Iterable[Diagnostic]) -> str:
    """`2 errors, 1 warning`; "" without findings."""
    severities = [finding.severity for finding in findings]
    return ", ".join(plural(severities.count(s), s) for s in Severity if s in severities)


def shares(report: Report) -> str:
    """The memory of each rank: `2 ranks: 248.9 MB each`; "" if ranks were not requested.

    If it differs, there is a line for each run of equal ranks: `ranks 0 to 7: 16.1 GB each`, `rank 8: 17.2 GB`.

    For a quantised checkpoint also as stored: `2 ranks: 80.1 MB each as stored, 312.4 MB as float32`. Then the bytes
    that a conversion of each rank reads, if known: `2 ranks: 248.9 MB each, 260.0 MB read`.
    """
    held = [size(nbytes) for nbytes in report.bytes_per_rank]
    if stored := report.stored_bytes_per_rank:
        pairs = zip(stored, held, strict=True)
        held = [f"{size(nbytes)} as stored, {whole} as {report.dtype}" for nbytes, whole in pairs]
    if report.read_bytes_per_rank:
        held = [f"{text}, {size(nbytes)} read" for text, nbytes in zip(held, report.read_bytes_per_rank, strict=True)]
    runs = [[rank for rank, _ in run] for _, run in groupby(enumerate(held), key=itemgetter(1))]
    if len(runs) == 1:
        return f"{plural(len(held), 'rank')}: {_each(held[0])}"
    lines: list[str] = []
    for first, *others in runs:
        several = f"ranks {first} to {others[-1]}: {_each(held[first])}" if others else ""
        lines.append(several or f"rank {first}: {held[first]}")
    return "\n".join(lines)


def _each(text: str) -> str:
    """`80.1 MB each as stored, 312.4 MB as float32`: the first size is followed by "each"."""
    number, unit, *rest = text.split(" ", 2)
    comma = "," if unit.endswith(",") else ""
    return " ".join((number, unit.removesuffix(","), "each" + comma, *rest))


def fixable(report: Report) -> str:
    """The number of findings that `--fix` corrects; "" for none."""
    count = sum(bool(finding.fixes) for finding in report.findings)
    return f"[*] {count} fixable with --fix" if count else ""


def pointer(findings: Iterable[Diagnostic]) -> str:
    """The command that explains the first finding."""
    return f"`bringup explain {ordered(findings)[0].code}` has more"
