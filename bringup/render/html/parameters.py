"""The source of each parameter: its tensors, their files, the rule, and what the rule computes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from bringup.adapters.algebra.computed import Computed
from bringup.adapters.planning.plan import Entry, Plan
from bringup.compile.report.describe import copies, dtypes, how
from bringup.compile.report.record import Record
from bringup.graphs.core.axes import show
from bringup.grouping import digits, grouped
from bringup.render.html.section import Section
from bringup.render.html.source import line_of
from bringup.render.html.table import folded, names, table
from bringup.render.html.tags import Html, Inside, code, tag
from bringup.render.words import plural, size
from bringup.spec import DTYPES, TensorInfo

MOST = 400  # listed parameters of one group
FEW = 4  # names before a count of the others


def parameters(record: Record) -> Section:
    """One entry for all layers with the same rule, and then the dropped tensors."""
    plan = record.job.plan
    aliases = plan.aliases()
    alike: dict[object, list[Entry]] = {}
    for name, entry in plan.entries.items():
        key = (digits(name)[0], entry.rule.site, show(entry.declared.axes), entry.declared.storage, how(entry))
        alike.setdefault((*key, *dtypes(entry), aliases.get(name)), []).append(entry)
    counts = record.counts
    lead = (
        f"{plural(len(plan.entries), 'parameter')} computed from {plural(counts['tensors'], 'tensor')}: "
        f"{counts['consumed']:,} read, {counts['dropped']:,} dropped with a reason."
    )
    heads = tag(
        "div", *(tag("span", head) for head in ("parameter", "computed from", "operations")), class_="row heads"
    )
    entries = tag("div", heads, *(_group(group, aliases) for group in alike.values()), class_="origins")
    return Section("parameters", "Where each parameter came from", lead, (entries, _dropped(plan)))


def _group(group: list[Entry], aliases: dict[str, str]) -> Html:
    first = group[0]
    parameters = [entry.declared.name for entry in group]
    sources = grouped(dict.fromkeys(info.name for entry in group for info in entry.tensors))
    row = (
        tag("span", names(grouped(parameters))),
        tag("span", tag("span", "from ", class_="from"), _few(sources), class_="sources"),
        tag("span", *_marks(first, aliases), class_="marks"),
    )
    return folded(tag("span", *row, class_="row"), _facts(first), _each(group))


def _marks(entry: Entry, aliases: dict[str, str]) -> Iterator[Html]:
    """The steps of the rule, in a few words each."""
    computed = [source.name for source in entry.sources if isinstance(source, Computed)]
    for word in computed or [how(entry)]:
        yield tag("span", word, class_="mark" if word == "as stored" else "mark moved")
    for word in dtypes(entry):
        if "→" in word or "," not in word:
            yield tag("span", word, class_="mark rounded" if "rounded" in word else "mark")
    if entry.declared.name in aliases:
        yield tag("span", "tied: stored once", class_="mark tied")
    shape = entry.region.shape
    if len(shape) == 2 and shape[0] == shape[1]:
        message = "square: its shape does not show whether it is transposed; its axes do"
        yield tag("span", "square", class_="mark square", title=message)


def _facts(entry: Entry) -> Html:
    shape, dtype = entry.declared.storage
    facts: list[tuple[str, Inside]] = [
        ("declared", (code(show(entry.declared.axes)), f" {list(shape)} {dtype}, {size(entry.declared.nbytes)}")),
        ("rule", (code(entry.rule.pattern), line_of(entry.rule.site))),
        ("element type", "; ".join(dtypes(entry))),
        ("copies", tag("ul", *(tag("li", line) for line in _first(list(copies(entry)))), class_="plain")),
    ]
    computed = [s for s in entry.sources if isinstance(s, Computed)]
    facts += [("computed", f"{s.name}, {'exact' if s.exact else 'not exact'}") for s in computed]
    return tag("dl", *((tag("dt", label), tag("dd", message)) for label, message in facts), class_="facts")


def _each(group: list[Entry]) -> Html:
    """Every parameter with its own tensors and their file."""
    rows = [
        (code(entry.declared.name), _few(grouped(info.name for info in entry.tensors)), *_stored(list(entry.tensors)))
        for entry in group[:MOST]
    ]
    rest = tag("p", f"and {len(group) - MOST:,} more: `bringup explain NAME` describes each", class_="note")
    heads = ("parameter", "tensor", "stored as", "in the file")
    return tag("div", table(heads, rows, numbers=lambda _: False), rest if len(group) > MOST else None)


def _stored(tensors: list[TensorInfo]) -> tuple[Inside, Inside]:
    kinds = dict.fromkeys(f"{list(info.shape)} {info.dtype}" for info in tensors)
    files = dict.fromkeys(info.file.name for info in tensors if info.file)
    return ", ".join(_first(list(kinds))), _few(files) if files else "generated when read"


def _few(listed: Iterable[str]) -> Html:
    known = list(listed)
    more = f" and {len(known) - FEW} more" if len(known) > FEW else ""
    return tag("span", names(known[:FEW]), more)


def _first(texts: list[str]) -> list[str]:
    return texts[:FEW] + ([f"and {len(texts) - FEW} more"] if len(texts) > FEW else [])


def _dropped(plan: Plan) -> Html | None:
    """The tensors that no parameter reads, by their drop, with its reason."""
    by_drop: dict[tuple[str, str], list[str]] = {}
    for name, drop in plan.dropped.items():
        by_drop.setdefault((drop.why, str(drop.site)), []).append(name)
    rows = [
        (_few(grouped(left)), why, f"{len(left):,}", _bytes(plan.headers[name] for name in left), code(site))
        for (why, site), left in by_drop.items()
    ]
    heads = ("dropped", "because", "tensors", "bytes", "rule")
    shown = table(heads, rows, numbers=lambda column: column in (2, 3))
    return tag("div", tag("h3", "Dropped tensors"), shown, class_="dropped") if rows else None


def _bytes(infos: Iterable[TensorInfo]) -> str:
    return size(sum(DTYPES[info.dtype].nbytes(info.shape) for info in infos))
