"""Tensors that are read together, and the readings of a matrix."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from bringup.compile.draft.facts.quoted import quoted
from bringup.compile.draft.facts.roles import Tensors


@dataclass(frozen=True, slots=True)
class Reading:
    """Rules by the pattern of their parameter, and a description of the layout."""

    meaning: str
    rules: Mapping[str, str]


@dataclass(slots=True)
class Slot:
    """Tensors that are read together, all their readings, and the valid ones, of which the first is in the draft."""

    tensors: Tensors
    readings: list[Reading]
    proved: list[Reading] = field(default_factory=list[Reading])


def rule(tensors: Tensors, axes: str = "") -> str:
    return f"S({tensors.quoted}, {quoted(axes)})" if axes else f"S({tensors.quoted})"


def matrix(tensors: Tensors, target: str) -> Slot:
    """A matrix that torch's Linear stores, or its transpose (Conv1D); a bias has one reading."""
    readings = [Reading("out in", {target: rule(tensors)})]
    if tensors.p == "weight":
        readings.append(Reading("in out", {target: rule(tensors, "in out")}))
    return Slot(tensors, readings)
