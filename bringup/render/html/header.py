"""The head of the page: the model, its files, and the versions of the tools."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from bringup.compile.report.record import Record
from bringup.render.html.table import more, table
from bringup.render.html.tags import Html, Inside, code, tag
from bringup.render.words import count, plural, seconds, size

_KNOWN = {"source", "weights", "files", "bytes"}  # keys of the provenance that other parts show


def header(record: Record) -> Html:
    """The model, the result and the main figures."""
    name = record.job.model or record.job.graph.config.family
    outcome = tag("strong", record.result, class_="outcome " + ("good" if record.ok else "bad"))
    title = tag("p", "bringup report", class_="kind"), tag("h1", name), tag("p", outcome)
    facts = tag("dl", *((tag("dt", label), tag("dd", value)) for label, value in _facts(record)), class_="facts")
    tiles = tag("ul", *(_tile(label, figure) for label, figure in _figures(record)), class_="tiles")
    return tag("header", *title, _dummy(record), tiles, facts, tuple(_tables(record)))


def _dummy(record: Record) -> Html | None:
    if not record.job.checkpoint.is_dummy:
        return None
    kind, message = (
        "Dummy weights.",
        " Seeded random numbers in the published layout: shapes and times are real, text is not.",
    )
    return tag("p", tag("strong", kind), message, class_="dummy", role="note")


def _figures(record: Record) -> Iterator[tuple[str, Inside]]:
    sizes = record.sizes
    if sizes:
        yield "values", count(sizes.elements)
        yield "weights", size(sizes.weights)
        yield "cache a token", size(sizes.cache_per_token)
    yield "time", tag("time", seconds(record.seconds))
    yield "findings", str(len(record.findings)) if record.findings else "none"
    if record.parity and record.parity.differences:
        yield "largest error", f"{max(d.relative for d in record.parity.differences):.1e}"


def _tile(label: str, figure: Inside) -> Html:
    return tag("li", tag("b", figure), tag("span", label))


def _facts(record: Record) -> Iterator[tuple[str, Inside]]:
    job = record.job
    architecture = job.config.get("architectures")
    named = ", ".join(map(str, architecture or ()))
    yield "family", (job.graph.config.family, f", {named}" if named else "")
    yield "checkpoint", (code(job.checkpoint.source), f" ({job.checkpoint.format})")
    for key, value in job.checkpoint.provenance.items():
        if key not in _KNOWN and str(value) != job.checkpoint.source:
            yield key, code(str(value))
    yield "target", record.target
    yield "element type", job.graph.dtype
    yield "context", plural(record.context, "token")
    if record.bundle:
        yield "bundle", code(str(record.bundle))
    yield "command", code(record.command)
    yield "date", tag("time", record.date.strftime("%Y-%m-%d %H:%M:%S %Z"), datetime=record.date.isoformat())


def _tables(record: Record) -> Iterator[Html]:
    """Long lists in collapsed blocks: versions, the checkpoint's files, the bundle's."""
    versions = ", ".join(f"{name} {version}" for name, version in list(record.versions.items())[:2])
    rows = ((name, version) for name, version in record.versions.items())
    yield more(f"Versions: {versions} and others", table(("tool", "version"), rows))
    read: Mapping[str, int] = record.job.checkpoint.provenance.get("files") or {}
    for whose, sizes in (("checkpoint", read), ("bundle", record.files)):
        if sizes:
            rows = ((code(name), size(nbytes)) for name, nbytes in sizes.items())
            total = f"{len(sizes)}, {size(sum(sizes.values()))}"
            yield more(f"Files of the {whose}: {total}", table(("file", "bytes"), rows))
