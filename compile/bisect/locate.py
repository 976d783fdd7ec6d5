"""The module at fault in a graph: the innermost one whose own output is wrong for correct inputs, proved by trials."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from bringup.compile.bisect.modules import CLEAR
from bringup.compile.bisect.observation import Observation
from bringup.compile.parity.parity import Layer

ROUNDING = 1e-6  # of sums in another order


@dataclass(frozen=True, slots=True)
class Place:
    """The innermost module whose fault is proved, None for the code of the graph between its modules.

    `rope`: the error of the cosines of rope that it gets. `before`: the first module inside whose input is wrong
    there, of those that do not depart alone; "" if none is.
    """

    layer: Layer | None
    before: str
    rope: float = 0.0


def located(observation: Observation, layers: Sequence[Layer], tolerance: float) -> Place:
    """The place of the fault in a graph that departs.

    A module departs alone if its output is wrong for the reference's inputs. That is no proof: the reference's module
    may return another thing, such as the same channels in another order, which the code around ours accounts for. So
    the module around it is repeated on its own inputs from the reference. The fault is proved if the module gets
    correct inputs there, and if a value after it (an input of another module inside, or the result) is correct with
    the reference's output in place of the module's, and wrong without. Several modules may be wrong at once: each is
    tried alone, and then while the others that depart return the reference's outputs.
    """
    departing = {layer.name for layer in layers if layer.departs(tolerance)}
    name = ""
    while inner := _inside(observation, name, departing, tolerance):
        name = inner
    wrong = observation.trial(name, []).inputs
    parts = (part for part in observation.inside(name) if part not in departing)
    before = next((part for part in parts if not wrong.get(part, 0.0) <= tolerance), "")
    layer = next((layer for layer in layers if layer.name == name), None)
    return Place(layer, before, observation.rope_error(name))


def _inside(observation: Observation, parent: str, departing: Collection[str], tolerance: float) -> str:
    """The first module inside `parent` whose fault is proved, "" for none."""
    names = observation.inside(parent)
    suspects = [name for name in names if name in departing]
    for corrected in ([], suspects) if len(suspects) > 1 else ([],):
        for name in suspects:
            others = [other for other in corrected if other != name]
            without = observation.trial(parent, others)
            if not without.inputs.get(name, float("inf")) <= tolerance:
                continue
            fixed = observation.trial(parent, [*others, name])
            after = names[names.index(name) + 1 :]
            pairs = [(without.inputs[x], fixed.inputs[x]) for x in after if x in without.inputs and x in fixed.inputs]
            if without.output is not None and fixed.output is not None:
                pairs.append((without.output, fixed.output))
            if any(right <= tolerance and wrong > CLEAR * max(right, ROUNDING) for wrong, right in pairs):
                return name
    return ""
