"""How near two sets of logits are, and what counts as near enough."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from bringup.diagnostics import Diagnostic

# Largest |difference| as a share of the largest |reference|. float32: sums in another order, some 1e-5 at a hundred
# layers' depth, with room for a cache read in blocks. The 16-bit types: their own rounding, 2^-8 and 2^-11, a few
# times over; transformers rounds after every operation, bringup keeps attention and norms in float32.
TOLERANCE = {"float32": 2e-4, "bfloat16": 2e-2, "float16": 5e-3}


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
    """Compares row by row; NaN anywhere is infinitely far."""
    gap = np.abs(ours.astype(np.float64) - reference)
    worst = gap.max() / max(float(np.abs(reference).max()), 1e-30)
    second, first = np.partition(reference, -2, axis=-1)[:, -2:].T
    decided = first - second > 2 * gap.max(axis=-1)
    equal = ours.argmax(-1) == reference.argmax(-1)
    return Difference(
        phase=phase,
        rows=len(ours),
        relative=float(worst) if np.isfinite(worst) else float("inf"),
        wrong=int((decided & ~equal).sum()),
        exempt=int((~decided).sum()),
    )


@dataclass(slots=True, kw_only=True)
class Parity:
    """The outcome of a verification; `tolerance` bounds every difference's `relative`."""

    model: str
    target: str
    dtype: str
    reference: str
    tolerance: float
    differences: list[Difference] = field(default_factory=list[Difference])
    findings: list[Diagnostic] = field(default_factory=list[Diagnostic])

    @property
    def ok(self) -> bool:
        return all(d.relative <= self.tolerance and not d.wrong for d in self.differences)

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
        """What parity.json holds."""
        known = ("model", "target", "dtype", "reference", "tolerance")
        return {key: getattr(self, key) for key in known} | {
            "ok": self.ok,
            "differences": [asdict(difference) for difference in self.differences],
            "findings": [finding.as_json() for finding in self.findings],
        }
