"""Proves that a checkpoint fits a graph, or reports all findings, one diagnostic for each mistake."""

from __future__ import annotations

import time
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from bringup.adapters.algebra.expr import Expr, Mv
from bringup.adapters.planning.coverage import half_used, partly_read, total_bits
from bringup.adapters.planning.plan import Entry, Plan
from bringup.adapters.planning.problems import Problem
from bringup.compile.check.by_name import in_terms_of_weights
from bringup.compile.check.corrections import FOLLOW, UNREAD, corrections, explained, known_sizes
from bringup.compile.check.dtypes import odd_dtypes
from bringup.compile.check.facts.config_keys import ConfigWords
from bringup.compile.check.facts.shapes import first_sites, parameters_and_tensors, shape_mistakes, sites, stored
from bringup.compile.check.facts.unruled import rule_advice, tensors_of_unruled
from bringup.compile.check.fused import unread_scales
from bringup.compile.check.missing import missing_and_unread
from bringup.compile.check.quantisation.matrices import NONE, Matrices, misnamed
from bringup.compile.check.quantisation.scales import scale_mistakes
from bringup.compile.check.quantisation.separate import without_quantised
from bringup.compile.check.quantisation.statement import UNSTATED, statement
from bringup.compile.check.quantisation.widths import width_mistakes
from bringup.diagnostics import Diagnostic, Report, Severity, Sites
from bringup.grouping import grouped
from bringup.spec import FLOATS, Site

if TYPE_CHECKING:
    from bringup.compile.job import Job


def check(
    plan: Plan,
    model: str = "",
    words: ConfigWords | None = None,
    known: Sequence[Diagnostic] = (),
    matrices: Matrices = NONE,
) -> Report:
    """Checks that every parameter is complete and every tensor is read completely or dropped with a reason.

    No tensor is read; torch is not imported, and numpy only if readers of one tensor overlap. `words` maps axes to
    config keys. `known` are earlier findings, whose tensors are not reported a second time. `matrices` are
    quantised ones that may only have another name.
    """
    report = Report(model, parameters=tuple(plan.signature))
    problems = [problem for problem in plan.problems if problem.code not in ("BU101", "BU109")]
    problems = [p for p in problems if not (words and words.is_consequence(p))]
    lost = next((finding for finding in known if finding.lost and not finding.sources), None)
    unruled = tensors_of_unruled(plan)
    reported = {*(name for finding in known for name in finding.sources), *unruled}
    report.findings += missing_and_unread(plan, reported, lost, words, matrices)
    site = first_sites(problems)
    place = statement(words.job) if words else UNSTATED
    scales, shapes = scale_mistakes(plan, [p for p in problems if p.code == "BU102"], place)
    widths, shapes = width_mistakes(plan, shapes, place)
    report.findings += [*scales, *widths, *shape_mistakes(plan, shapes, site, words)]
    alike: dict[object, list[Problem]] = {}
    for p in problems:
        if p.code != "BU102":
            alike.setdefault(_mistake(p, site(p)), []).append(p)
    report.findings += (_other(plan, facts, unruled) for facts in alike.values())
    report.findings += _partly_read(plan, unruled)
    report.findings += _odd_squares(plan)
    report.findings += odd_dtypes(plan)
    report.counts = {
        "parameters": len(plan.signature),
        "tensors": len(plan.headers),
        "consumed": len(plan.headers) - len(plan.dropped) - len(plan.unread),
        "dropped": len(plan.dropped),
    }
    return report


def check_job(job: Job) -> Report:
    """Checks, from headers only, that the job's checkpoint fits its graph; the report has the findings."""
    from bringup.compile.job import as_job

    start = time.perf_counter()
    job = as_job(job)
    report = _checked(job)
    if job.adapter.by_name:
        report.findings = in_terms_of_weights(job.plan, report.findings)
    report.findings = [job.places.in_file(finding) for finding in report.findings]
    report.seconds = time.perf_counter() - start
    return report


def _checked(job: Job) -> Report:
    job = known_sizes(job)
    words = ConfigWords(job)
    matrices = misnamed(job)
    rest, quantised, unread = without_quantised(job, matrices.unread)
    report = check(rest.plan, job.graph.config.family, words, rest.findings, matrices)
    report.counts["consumed"] -= unread
    reported = [(finding.code, finding.file) for finding in report.findings if finding.lost]
    known = [finding for finding in rest.findings if not finding.lost or (finding.code, finding.file) not in reported]
    report.findings = [*known, *quantised, *report.findings]
    sized = {"BU102", "BU122", *UNREAD} & {finding.code for finding in report.findings}
    for key, value, corrected in corrections(job, words) if sized else ():
        others = _checked(corrected).findings
        left = {(finding.code, finding.parameter or finding.sources) for finding in others}
        gone = [f for f in report.findings if f.code in FOLLOW and (f.code, f.parameter or f.sources) not in left]
        gone.sort(key=lambda finding: (finding.config_key != key, FOLLOW.index(finding.code)))
        if gone and (gone[0].config_key == key or len(others) + 1 < len(report.findings)):
            errors = (finding for finding in known if finding.severity is Severity.ERROR)
            first = next((finding for finding in errors if finding.config_key == key), None)  # on the key itself
            first = first or explained(gone[0], key, value, len(report.findings) - len(others) - 1)
            report.findings = [first, *others]
            break
    return report


_WORDS: dict[str, tuple[str, str]] = {
    "BU103": ("no rule of the adapter computes `{parameter}`", "add a rule for it to the adapter"),
    "BU106": (
        "`{parameter}`: {message}",
        'state how the tensor is stored, in the order of its dimensions: S(name, "in out")',
    ),
    "BU108": (
        "`{parameter}` is declared {expected}, the checkpoint stores {actual}",
        "floats convert into one another; anything else needs a value node in the rule, such as dequant",
    ),
    "BU110": ("`{parameter}`: {message}", "make the patterns exclude one another"),
    "BU153": ("{message}", "correct the names of the hook's results, or remove it"),
    "BU111": ("{message}", "correct the pattern or its `expect`: a drop that matches too much hides weights"),
}

# For inputs of a value node: the fix for a float that is too wide, and for any other dtype.
_PAYLOAD = (
    "a matrix of that dtype is dequantised already, and scaled once more it would be another: remove its scale, and "
    "have `quantization_config` list its module as not converted"
)
_BYTES = 'save the tensor in that dtype; bytes that stand for one are read with .bits("…")'


def _mistake(p: Problem, site: Site | None) -> object:
    """Equal for facts of one mistake: tensors of one wrong dtype, a rule's axes, or one message at one rule."""
    if p.code == "BU108":
        return p.code, p.message or (p.node, p.expected, p.actual)
    if p.code == "BU106" and site:
        return p.code, site
    return p.code, site, p.expected, p.actual, p.message


def _other(plan: Plan, facts: list[Problem], unruled: Mapping[str, set[str]]) -> Diagnostic:
    first = facts[0]
    parameter, sources = parameters_and_tensors(facts)
    message, help = _WORDS[first.code]
    if first.code == "BU108":
        message = "`{parameter}`: {message}" if first.message else message
        if first.node:
            message = "`{tensors}` is stored as {actual}; `{node}` supports {expected}"
            takes_payloads = "uint8" not in first.expected.split(" or ")  # then it accepts any bytes
            help = _PAYLOAD if first.actual in FLOATS and takes_payloads else _BYTES
        elif scales := unread_scales(plan, sources):
            help = f"it is quantised, and `{', '.join(grouped(scales))}` has its scales: dequant(S(…), S(…), block=…)"
    if first.code == "BU103":
        advice, sources = rule_advice(plan, facts, unruled)
        help = advice or help
    words = {
        "parameter": parameter,
        "tensors": ", ".join(grouped(sources)),
        "node": first.node,
        "message": first.message,
        "help": first.help,
        "expected": first.expected,
        "actual": first.actual,
    }
    return Diagnostic(
        code=first.code,
        message=message.format(**words),
        help=first.help or help,
        parameter=parameter,
        sources=sources,
        expected=first.expected,
        actual=first.actual,
        **sites(plan, first),
    )


def _partly_read(plan: Plan, known: Container[str]) -> Iterator[Diagnostic]:
    """Tensors with elements that reach no parameter, except those that another finding explains."""
    parts: dict[tuple[int, int], list[str]] = {}
    for name, read in partly_read(plan).items():
        if name not in plan.cut and name not in known:
            parts.setdefault((read, total_bits(plan.headers[name])), []).append(name)
    for (read, total), names in parts.items():
        yield Diagnostic(
            code="BU113",
            message=f"only {read / total:.1%} of `{', '.join(grouped(names))}` is read by any rule",
            help="cover the rest with a rule, or state why it is dropped: drop(name, why=…)",
            sources=tuple(names),
            **stored(plan, names),
        )
    values: dict[tuple[str, float, Site], tuple[float, Entry, list[str], list[str]]] = {}
    for entry, value, share in half_used(plan):
        sources = [info.name for info in entry.tensors]
        if not all(name in known for name in sources):
            key = value.name, share, entry.rule.site
            _, _, parameters, tensors = values.setdefault(key, (share, entry, [], []))
            parameters.append(entry.declared.name)
            tensors += sources
    for (name, *_), (share, entry, parameters, tensors) in values.items():
        yield Diagnostic(
            code="BU113",
            message=f"only {share:.1%} of the result of `{name}` is read by any rule",
            help="cover the rest with a rule",
            parameter=", ".join(grouped(parameters)),
            sources=tuple(tensors),
            **_where(plan, entry, tuple(tensors)),
        )


def _odd_squares(plan: Plan) -> Iterator[Diagnostic]:
    """Square tensors that are read transposed, unlike all rectangular ones of the layer, which no shape shows."""
    transposed: dict[str, set[bool]] = {}
    for name, entry in plan.entries.items():
        shape = entry.region.shape
        if len(shape) == 2 and shape[0] != shape[1]:
            transposed.setdefault(_layer(name), set()).add(_is_transposed(entry))
    odd: dict[object, list[str]] = {}
    for name, entry in plan.entries.items():
        siblings = transposed.get(_layer(name), set())
        if _is_square(entry) and not _moves_axes(entry.rule.own_expr) and siblings == {not _is_transposed(entry)}:
            odd.setdefault(entry.rule.site, []).append(name)
    for names in odd.values():
        first = plan.entries[names[0]]
        sources = tuple(info.name for name in names for info in plan.entries[name].tensors)
        axes = first.declared.axes
        there, back = (" ".join(axis.name or str(axis) for axis in order) for order in (axes, axes[::-1]))
        if _is_transposed(first):
            there, back = back, there
        yield Diagnostic(
            code="BU107",
            message=f"`{', '.join(grouped(names))}` is square and read as `{there}`; every rectangular matrix "
            f"of the layer is stored as `{back}`",
            help=f'no shape shows a forgotten transpose: write S(…, "{back}"); if it is stored as '
            f'`{there}`, state that: S(…, "{there}").mv("{there} -> {back}")',
            parameter=", ".join(grouped(names)),
            sources=sources,
            **_where(plan, first, sources),
        )


def _where(plan: Plan, entry: Entry, sources: tuple[str, ...]) -> Sites:
    return Sites(where=entry.rule.site, declared=entry.declared.site) | stored(plan, sources)


def _is_square(entry: Entry) -> bool:
    """Whether the parameter and its only tensor are square matrices."""
    shapes = [part.shape for part in (entry.region, *entry.sources[:2])]
    return len(shapes) == 2 and all(len(shape) == 2 and shape[0] == shape[1] for shape in shapes)


def _moves_axes(expr: Expr) -> bool:
    """Whether a rule moves axes explicitly: then the direction is intended."""
    return isinstance(expr, Mv) or any(map(_moves_axes, expr.inputs()))


def _layer(name: str) -> str:
    """The subtree of a layer, which its matrices share: the name up to the first number."""
    head, _, rest = name.partition(".")
    while rest and not head.rpartition(".")[2].isdigit():
        step, _, rest = rest.partition(".")
        head = f"{head}.{step}"
    return head if rest else ""


def _is_transposed(entry: Entry) -> bool:
    strides = ([read for _, read, _ in nest.loops] for nest in entry.region.nests)
    return any(each and each[-1] != min(each) for each in strides)
