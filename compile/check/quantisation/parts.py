"""Implausible values of scales and zero points, in tensors with the right names, shapes and dtypes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bringup.adapters.algebra.computed import Computed
from bringup.adapters.apply.materialise import Read, fill_region
from bringup.adapters.planning.plan import Entry, Plan
from bringup.compile.check.facts.shapes import stored
from bringup.diagnostics import BringupError, Diagnostic, Severity, Sites
from bringup.graphs.core.form import Form
from bringup.grouping import grouped, roots

if TYPE_CHECKING:
    import numpy as np

    from bringup.compile.job import Job

# Far above the scales of any matrix of a linear layer: rows of a thousand such weights would multiply the norm of their
# input by 500. Scales that are the reciprocal of the right ones are in the hundreds and more.
LARGEST_USUAL = 16.0
# The root mean square of the codes: the largest value of a block has the largest code, and for normally distributed
# values that is three or four times their standard deviation.
TYPICAL_CODE = {"float8_e4m3fn": 112.0, "int8": 32.0, "uint8": 32.0, "float4_e2m1fn": 2.0, "uint4": 2.0, "int4": 2.0}
MIDDLES = (2, 4, 8, 128)  # the zero point of symmetric weights of 2, 3, 4 and 8 bits


@dataclass(slots=True)
class OddParts:
    """The parameters whose scales are far too large, and the zero points, if all have the same."""

    large: list[str] = field(default_factory=list[str])
    zeros: dict[str, set[int]] = field(default_factory=dict[str, set[int]])

    def look(self, name: str, entry: Entry, read: Read) -> None:
        """Reads the scales and the zero points of each matrix of a parameter."""
        for source in entry.sources:
            if isinstance(source, Computed) and source.form:
                arrays = {
                    part.name: region
                    for part, region in zip(source.form.parts(), source.arrays, strict=True)
                    if part.name in ("scales", "outer_scales", "zeros")
                }
                found = {
                    part: fill_region(region, entry.sources, read, region.dtype) for part, region in arrays.items()
                }
                if name not in self.large and LARGEST_USUAL < _magnitude(source.form, found) < math.inf:
                    self.large.append(name)
                if "zeros" in found:
                    self.zeros.setdefault(name, set()).update(_few(found["zeros"]))

    def findings(self, plan: Plan) -> Iterator[Diagnostic]:
        """BU119, a warning each."""
        if self.large:
            yield _finding(
                plan,
                self.large,
                "has scales with which its values are hundreds of times those of any trained matrix",
                "they may be reciprocals: some formats multiply by the scale, others divide by it",
            )
        common = set[int]().union(*self.zeros.values())
        if len(common) == 1 and (middle := _next_to_middle(*common)):
            (zero,) = common
            yield _finding(
                plan,
                list(self.zeros),
                f"has {zero} in place of every 0, next to the middle of the codes, {middle}",
                "symmetric weights have the middle: were the zero points written in the other version of the format? "
                f'set `checkpoint_format` to "{"gptq_v2" if zero > middle else "gptq"}"',
            )


def part_warnings(job: Job) -> list[Diagnostic]:
    """Warnings on scales and zero points. Reads only these; nothing for a checkpoint without quantised matrices.

    Values that are errors when they are read (BU115) are reported when the parameter is computed.
    """
    odd, aliases, read = OddParts(), job.plan.aliases(), job.checkpoint.loaded
    for name, entry in job.plan.entries.items():
        if name not in aliases:
            with suppress(BringupError):
                odd.look(name, entry, read)
    return list(odd.findings(job.plan))


def _magnitude(form: Form, parts: dict[str, np.ndarray]) -> float:
    """The approximate magnitude of a matrix's values, by the median of its scales. 0 for codes without a usual size."""
    import numpy as np

    typical = TYPICAL_CODE.get(form.codes, 0.0)
    if form.table:
        typical = math.sqrt(sum(value * value for value in form.table) / len(form.table))
    if form.minimum or not typical or not parts["scales"].size:
        return 0.0
    scales = (np.median(np.abs(array.astype(np.float32))) for name, array in parts.items() if name != "zeros")
    return typical * math.prod(float(scale) for scale in scales)


def _few(zeros: np.ndarray) -> set[int]:
    """The zero points, or some of them."""
    import numpy as np

    values = zeros.astype(np.int16).reshape(-1)
    return {int(values.min()), int(values.max())} if values.size else set()


def _next_to_middle(zero: int) -> int:
    """The middle that differs from a number by one; 0 if there is none."""
    return next((middle for middle in reversed(MIDDLES) if abs(zero - middle) == 1), 0)


def _finding(plan: Plan, names: list[str], message: str, help: str) -> Diagnostic:
    listing, first = ", ".join(grouped(roots(names, plan.signature))), plan.entries[names[0]]
    sources = tuple(info.name for name in names for info in plan.entries[name].tensors)
    return Diagnostic(
        code="BU119",
        severity=Severity.WARNING,
        message=f"`{listing}` {message}",
        help=help,
        parameter=listing,
        sources=sources,
        **Sites(where=first.rule.site, declared=first.declared.site) | stored(plan, sources),
    )
