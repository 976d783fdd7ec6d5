"""The difference between two arrays, the tolerances for it, and the result of a verification."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from bringup.diagnostics import Diagnostic, Severity

# Largest |difference| divided by the largest |reference|, in float32. Sums in another order differ by about 1e-5 after
# a hundred layers; the rest is a margin for a cache that is read in blocks. The bound of 16-bit types is in
# rounding.py.
TOLERANCE = 2e-4
# The same for one stage of a program, and for one operation, that two executors ran on equal inputs. A stage: sums in
# another order and approximations of exp and tanh, or a few roundings. An operation: a 16-bit result may round to the
# next value, 2^-7 or 2^-10 of its size.
STAGE_TOLERANCE = {"float32": 5e-5, "bfloat16": 1.6e-2, "float16": 2e-3, "float8_e4m3fn": 0.25, "float8_e5m2": 0.5}
OP_TOLERANCE = {"float32": 2e-5, "bfloat16": 8e-3, "float16": 1e-3, "float8_e4m3fn": 0.125, "float8_e5m2": 0.25}


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Logits [R, V] of one phase, compared with the reference's.

    `relative` is max |ours - reference| / max |reference|. `excess` is the error divided by its bound: at most 1
    agrees. `wrong` counts rows with another top token than the reference, if the reference's margin over its second
    token exceeds the bound; `exempt` counts rows with a smaller margin. `undecided` counts rows that select (experts,
    keys) between scores that rounding cannot tell apart, and that agree only with another selection than the
    reference's. See `rounding.judge`. `scaled`, in 16 bits: the largest factor on an operation, averaged over rows,
    divided by its bound.
    """

    phase: str
    rows: int
    relative: float
    excess: float
    wrong: int
    exempt: int
    undecided: int = 0
    scaled: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether the logits agree."""
        return self.excess <= 1 and not self.wrong and self.scaled <= 1  # false for NaN


def relative(ours: np.ndarray, reference: np.ndarray) -> float:
    """max |ours - reference| / max |reference|, over the finite values of two arrays of one shape.

    Infinite if a value is NaN or infinite on one side only. Scores that are -inf on both sides (masked) are equal.
    """
    given, wanted = ours.astype(np.float64), reference.astype(np.float64)
    finite = np.isfinite(wanted)
    if not np.array_equal(given[~finite], wanted[~finite], equal_nan=True) or not np.isfinite(given[finite]).all():
        return float("inf")
    gap, scale = np.abs(given[finite] - wanted[finite]), np.abs(wanted[finite])
    return float(gap.max(initial=0.0) / max(float(scale.max(initial=0.0)), 1e-30))


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """The error of a module, compared with the reference's module, as `relative`; None if not recorded.

    `given` is the error of its input, `output` that of its output. `alone` is that of its output for the reference's
    input; a module that does not depart alone has inherited its error. `bound` is the bound of `alone` (of `output` if
    that is None), if it is not the verification's tolerance. `counterpart` is the name of the reference's module, "" if
    it is the same.
    """

    name: str
    given: float | None
    output: float
    alone: float | None
    bound: float | None = None
    counterpart: str = ""

    def departs(self, tolerance: float) -> bool:
        """Whether the module itself exceeds its bound; if inputs were not recorded, whether its output does."""
        own = self.output if self.alone is None else self.alone
        return not own <= (tolerance if self.bound is None else self.bound)


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """The operation that departs: its entry and call, its line of source, and its error.

    `alone`: it departs on equal inputs when it is compiled separately; otherwise only together with the operations
    before it. `state`: its result is correct, but not the values that it writes to that state. `factor`: the mean
    relative error of the result, if each of its values is within the tolerance.
    """

    entry: str
    call: str
    name: str
    target: str
    file: str
    line: int
    shape: tuple[int, ...]
    dtype: str
    inputs: tuple[str, ...]
    relative: float
    tolerance: float
    alone: bool
    state: str = ""
    factor: float = 0.0


@dataclass(slots=True, kw_only=True)
class Parity:
    """The result of a verification. `tolerance` bounds the errors of modules, and in float32 `relative` of the logits.

    `modules` compares each module with the reference. `calls` compares each call of the departing entry between
    executors; `op` is the operation in the first call that departs.
    """

    model: str
    target: str
    dtype: str
    reference: str
    tolerance: float
    tokens: int = 0
    differences: list[Difference] = field(default_factory=list[Difference])
    modules: list[Layer] = field(default_factory=list[Layer])
    calls: dict[str, float] = field(default_factory=dict[str, float])
    op: Op | None = None
    findings: list[Diagnostic] = field(default_factory=list[Diagnostic])

    @property
    def ok(self) -> bool:
        """Whether all phases agree, and no finding is an error."""
        near = all(difference.ok for difference in self.differences)
        return near and not any(finding.severity is Severity.ERROR for finding in self.findings)

    @property
    def layers(self) -> dict[str, float]:
        """Error by layer: module name → `relative` of its output, in the order of computation."""
        return {layer.name: layer.output for layer in self.modules}

    @property
    def rows(self) -> list[tuple[str, str]]:
        """For printing: pairs of a phase and its result."""
        return [(difference.phase, _row(difference)) for difference in self.differences]

    def as_json(self) -> dict[str, Any]:
        """The contents of parity.json; an infinite error is null."""
        known = ("model", "target", "dtype", "reference", "tolerance", "tokens")
        whole = {key: getattr(self, key) for key in known} | {
            "ok": self.ok,
            "differences": [asdict(difference) for difference in self.differences],
            "layers": self.layers,
            "modules": [asdict(layer) for layer in self.modules],
            "calls": self.calls,
            "op": asdict(self.op) if self.op else None,
            "findings": [finding.as_json() for finding in self.findings],
        }
        return _finite(whole)


def _row(found: Difference) -> str:
    message = f"{found.relative:.1e} of max |reference| over {found.rows} rows, {found.excess:.2g} of the bound; "
    message += f"top token wrong in {found.wrong}, too close to call in {found.exempt}"
    if found.scaled > 1:
        message += f"; an operation is off on average, by {found.scaled:.2g} of the bound"
    return f"{message}; choices of {found.undecided} too close to call" if found.undecided else message


def _finite(value: Any) -> Any:
    """JSON has no infinity."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
    return None if isinstance(value, float) and not np.isfinite(value) else value
