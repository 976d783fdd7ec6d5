"""A verification as text: phases, error by module, the first wrong operation, and a summary line."""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from bringup.render.report import findings_text
from bringup.render.terminal import Paint
from bringup.render.words import table
from bringup.spec import Site

if TYPE_CHECKING:
    from bringup.compile.parity.parity import Layer, Op, Parity

_FEW = 3  # consecutive layers without an error that are printed one by one
Row = tuple[str, ...]


def parity_text(parity: Parity, name: str, paint: Paint) -> str:
    """The output of `bringup verify`, with a newline at the end."""
    parts = [table(parity.rows)]
    if parity.modules:
        off = [module for module in parity.modules if _off(module, parity.tolerance)]
        parts.append(modules_text(parity, paint) if off else _nearest(parity.modules))
        if off and parity.ok:
            parts.append(_in_another_form(off))
    if parity.calls:
        from bringup.compile.parity.parity import STAGE_TOLERANCE

        worst = max(parity.calls.values())
        near = worst <= STAGE_TOLERANCE[parity.dtype]  # then only the logits differ
        first = next((call for call, error in parity.calls.items() if error == worst and not near), "")
        first = parity.op.call if parity.op else first
        rows = [(call, _number(error), _mark(call == first, "departs", paint)) for call, error in parity.calls.items()]
        title = (f"compiled for {parity.target}", "from torch", "")
        parts.append(table([title, *_shortened(rows)]))
    if parity.op:
        parts.append(op_text(parity.op, paint))
    message = paint("agrees", "green") if parity.ok else paint("departs", "red")
    last = f"{name}: {message} on {parity.target} with {parity.reference} ({parity.tokens:,} tokens, "
    last += f"{parity.dtype}, tolerance {parity.tolerance:g})"
    return "\n\n".join(parts) + "\n\n" + findings_text(parity.findings, paint) + last + "\n"


def modules_text(parity: Parity, paint: Paint) -> str:
    """Error by module: every layer, and every module of the first wrong layer. If the logits agree, no module is
    wrong."""
    from bringup.compile.bisect.modules import culprit

    modules, tolerance = parity.modules, parity.tolerance
    named = next((finding.parameter for finding in parity.findings if finding.code == "BU701"), None)
    found = (module for module in modules if module.name == named)
    departing = culprit(modules, tolerance) if named is None else next(found, None)
    inside = _layer(departing.name) if departing else ""
    rows: list[Row] = []
    for module in modules:
        layer = _layer(module.name)
        if layer not in ("", module.name, inside):
            continue
        state = "inherits" if module.bound is None and module.output > tolerance else ""
        if module.departs(tolerance):
            state = "differs" if parity.ok or not departing else "departs" if module is departing else "departs too"
        numbers = (_number(module.given), _number(module.output), _number(module.alone))
        rows.append((_named(module), *numbers, _mark(bool(state), state, paint)))
    return table([("module", "input", "output", "alone", ""), *_shortened(rows)])


def op_text(op: Op, paint: Paint) -> str:
    """The operation, its line of source, and its formula."""
    site, margin = Site(op.file, op.line), len(str(op.line))
    source = linecache.getline(op.file, op.line).rstrip()
    bar, text = paint("|", "blue"), source.strip()
    indent = " " * (len(source) - len(source.lstrip()))
    label = f"{op.target} gives {op.dtype}{list(op.shape)}"
    lines = [f"{paint(op.target, 'bold')} in {op.call} of {op.entry}"]
    lines.append(f"{' ' * margin}{paint('-->', 'blue')} {site}")
    if text:
        lines += [f"{' ' * margin} {bar}", f"{paint(str(op.line), 'blue')} {bar} {source}"]
        lines.append(f"{' ' * margin} {bar} {indent}{paint('^' * len(text) + ' ' + label, 'red')}")
    lines.append(f"{' ' * margin} {paint('=', 'blue')} {paint('inputs', 'bold')}: {', '.join(op.inputs)}")
    return "\n".join(lines)


def _named(module: Layer) -> str:
    """A module's name, and the last section of the reference's name if that is another."""
    theirs = module.counterpart.rpartition(".")[2]
    return f"{module.name} ({theirs})" if theirs not in ("", module.name.rpartition(".")[2]) else module.name


def _off(module: Layer, tolerance: float) -> bool:
    """Whether a module is marked: in 16 bits errors accumulate, and only a module that adds its own is marked."""
    return module.departs(tolerance) or (module.bound is None and not module.output <= tolerance)


def _nearest(modules: Sequence[Layer]) -> str:
    furthest = max(modules, key=lambda module: module.output)
    return f"all {len(modules)} modules agree; the largest error is {furthest.output:.1e}, of {furthest.name}"


def _in_another_form(off: Sequence[Layer]) -> str:
    names = ", ".join(module.name for module in off[:3]) + (", …" if len(off) > 3 else "")
    return (
        f"the logits agree although these outputs differ: {names}\n"
        "  two causes: an adapter reorders the rows of a matrix, such as those of q and k for rope in halves; or the\n"
        "  graph applies a factor in another module than transformers, such as that of the embedding"
    )


def _layer(name: str) -> str:
    """The layer of a module: `h.3` of `h.3.attn`; "" for one outside of layers."""
    found = re.match(r"(.*?\.\d+)(\.|$)", name)
    return found[1] if found else ""


def _number(error: float | None) -> str:
    return "-" if error is None else "0" if error == 0 else f"{error:.1e}"


def _mark(on: bool, verdict: str, paint: Paint) -> str:
    return paint(f"<- {verdict}", "red" if verdict == "departs" else "yellow") if on else ""


def _shortened(rows: Sequence[Row]) -> Iterator[Row]:
    """Long runs of rows without a mark as their first, their last, and the number of rows between."""
    plain: list[Row] = []

    def shortened() -> Iterator[Row]:
        if len(plain) <= _FEW:
            yield from plain
        else:
            yield from (plain[0], (f"… {len(plain) - 2} more that agree", *("" for _ in plain[0][1:])), plain[-1])
        plain.clear()

    for row in rows:
        if row[-1]:
            yield from shortened()
            yield row
        else:
            plain.append(row)
    yield from shortened()
