"""How near two sets of numbers are, what counts as near enough, and what a verification found."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from bringup.diagnostics import Diagnostic, Severity

# Largest |difference| as a share of the largest |reference|. float32: sums in another order, some 1e-5 at a hundred
# layers' depth, with room for a cache read in blocks. The 16-bit types: their own rounding, 2^-8 and 2^-11, a few
# times over; transformers rounds after every operation, bringup keeps attention and norms in float32.
TOLERANCE = {"float32": 2e-4, "bfloat16": 2e-2, "float16": 5e-3}
# The same for one stage of a program, and for one operation, that two executors ran on equal inputs. A stage: sums in
# another order and approximations of exp and tanh, or a few roundings. An operation: a 16-bit result may round to the
# next number, 2^-7 or 2^-10 of its size.
STAGE_TOLERANCE = {"float32": 5e-5, "bfloat16": 1.6e-2, "float16": 2e-3}
OP_TOLERANCE = {"float32": 2e-5, "bfloat16": 8e-3, "float16": 1e-3}


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Logits [R, V] of one phase against the reference's.

    `relative` is max |ours - reference| / max |reference|. A row's top token has to be the reference's wherever the
    reference's margin over its second exceeds twice the row's largest difference; `exempt` counts the other rows.
    """

    phase: str
    rows: int
    relative: float
    wrong: int
    exempt: int


def compare(phase: str, ours: np.ndarray, reference: np.ndarray) -> Difference:
    """Compares row by row; NaN or infinity anywhere is infinitely far."""
    gap = np.abs(ours.astype(np.float64) - reference)
    second, first = np.partition(reference, -2, axis=-1)[:, -2:].T
    decided = first - second > 2 * gap.max(axis=-1)
    equal = ours.argmax(-1) == reference.argmax(-1)
    return Difference(
        phase=phase,
        rows=len(ours),
        relative=relative(ours, reference) if np.isfinite(reference).all() else float("inf"),
        wrong=int((decided & ~equal).sum()),
        exempt=int((~decided).sum()),
    )


def relative(ours: np.ndarray, reference: np.ndarray) -> float:
    """max |ours - reference| / max |reference|, of the finite numbers; infinite where a number is finite, NaN or
    infinite on one side only. Scores that a mask made -inf on both sides are equal.
    """
    given, wanted = ours.astype(np.float64), reference.astype(np.float64)
    finite = np.isfinite(wanted)
    if not np.array_equal(given[~finite], wanted[~finite], equal_nan=True) or not np.isfinite(given[finite]).all():
        return float("inf")
    gap, scale = np.abs(given[finite] - wanted[finite]), np.abs(wanted[finite])
    return float(gap.max(initial=0.0) / max(float(scale.max(initial=0.0)), 1e-30))


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """How far a module is from the reference's module of that name, as `relative`; None where nothing was recorded.

    `given` compares their inputs, `output` their outputs, `alone` our output on the reference's input with the
    reference's output: a module that departs alone is at fault, one that does not has inherited.
    """

    name: str
    given: float | None
    output: float
    alone: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """The operation that departs: in which entry and call, its line of source, and what was found.

    `alone`: it departs on equal inputs with nothing compiled around it; otherwise only together with what comes before.
    `state`: its result is right, and what is left of it in that state for the next step is not.
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


@dataclass(slots=True, kw_only=True)
class Parity:
    """The outcome of a verification; `tolerance` bounds every difference's `relative`.

    `modules` compares each module with the reference; `calls` each call of the departing entry between executors, and
    `op` is the operation within the first call that departs.
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
        near = all(d.relative <= self.tolerance and not d.wrong for d in self.differences)
        return near and not any(finding.severity is Severity.ERROR for finding in self.findings)

    @property
    def layers(self) -> dict[str, float]:
        """Error by layer: module name → `relative` of its output, in the order of computing."""
        return {layer.name: layer.output for layer in self.modules}

    @property
    def rows(self) -> list[tuple[str, str]]:
        """For printing: phase → what was found."""
        return [
            (
                d.phase,
                f"{d.relative:.1e} of max |reference| over {d.rows} rows; "
                f"top token wrong in {d.wrong}, too close to call in {d.exempt}",
            )
            for d in self.differences
        ]

    def as_json(self) -> dict[str, Any]:
        """What parity.json holds; an infinite error is null."""
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


def _finite(value: Any) -> Any:
    """JSON has no infinity."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
    return None if isinstance(value, float) and not np.isfinite(value) else value
