"""A checkpoint with several independent faults, and the findings that a check must report for each."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from bringup.diagnostics import Diagnostic
from tests.check.mutations.bases import base
from tests.check.mutations.mutation import Trial

SHARDS = 3


@dataclass(frozen=True)
class Expected:
    """One fault: the codes it may have, and a text that its finding has to name."""

    kind: str
    codes: tuple[str, ...]
    names: str

    def fits(self, finding: Diagnostic) -> bool:
        text = " ".join((finding.message, finding.help, finding.parameter, *finding.sources))
        return finding.code in self.codes and self.names in text


@dataclass
class Draw:
    """A trial in the making, with the tensors and config keys that faults have taken."""

    family: str
    rng: random.Random
    trial: Trial = field(init=False)
    used: set[str] = field(default_factory=set)
    expected: list[Expected] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.trial = Trial(base(self.family), SHARDS)

    def tensor(self, *, matrix: bool | None = None) -> str | None:
        """A tensor of a layer that no fault has touched; `matrix`: rectangular, or a vector."""
        names = [
            name
            for name, array in self.trial.tensors.items()
            if name not in self.used
            and self.trial.draft.family.layers + "." in name
            and (matrix is None or (len(set(array.shape)) == 2 if matrix else array.ndim == 1))
            and (not matrix or array.ndim == 2)
        ]
        if not names:
            return None
        chosen = self.rng.choice(names)
        self.used.add(chosen)
        return chosen

    def key(self, *keys: str) -> str | None:
        """A config key that no fault has touched."""
        free = [key for key in keys if key in self.trial.config and key not in self.used]
        if not free:
            return None
        chosen = self.rng.choice(free)
        self.used.add(chosen)
        return chosen

    def note(self, kind: str, names: str, *codes: str) -> None:
        self.expected.append(Expected(kind, codes, names))


def matched(expected: list[Expected], findings: list[Diagnostic]) -> list[Expected]:
    """The faults that no finding of their own reports: a largest matching of the two."""
    owner: dict[int, int] = {}

    def place(fault: int, tried: set[int]) -> bool:
        for at, finding in enumerate(findings):
            if at in tried or not expected[fault].fits(finding):
                continue
            tried.add(at)
            if at not in owner or place(owner[at], tried):
                owner[at] = fault
                return True
        return False

    return [fault for k, fault in enumerate(expected) if not place(k, set())]
