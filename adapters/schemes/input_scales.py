"""Static scales of activations, stored with float8 matrices, for activations that are rounded to float8.

`input_scale` in compressed-tensors and ModelOpt, `activation_scale` in older files: one value for each matrix, by which
activations are divided (static quantisation). Without this class they are dropped, as no weight is computed from them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from bringup.adapters.algebra.expr import Expr
from bringup.adapters.algebra.quantised import QuantisedMatrix
from bringup.adapters.schemes.arrays import BY_MATRIX, E4M3, by_block
from bringup.adapters.schemes.scheme import Modules, Stored, StoredMatrix, Unread

NAMES = ("input_scale", "activation_scale")


class WithInputScales(Stored):
    """Another scheme's matrices; those in float8 with the scale of their activations if the checkpoint has one."""

    def __init__(self, of: Stored) -> None:
        self.of, self.unquantized = of, of.unquantized
        # The settings of a scheme's class, for this object.
        vars(self).update(
            {
                name: getattr(of, name)
                for name in ("scheme", "parts", "parts_of_experts", "keeps_order", "block_key", "leaves_experts")
            }
        )

    @property
    def all_parts(self) -> tuple[str, ...]:
        return (*self.of.all_parts, *NAMES)

    @property
    def lists_modules(self) -> bool:
        return self.of.lists_modules

    def stores(self, modules: Modules) -> bool:
        return self.of.stores(modules)

    def unread_parts(self) -> Iterator[Unread]:
        return self.of.unread_parts()

    def matrix(self, weight: StoredMatrix) -> Expr:
        found = self.of.matrix(weight)
        name = next((name for name in NAMES if name in weight.tensors), None)
        if name is None or not isinstance(found, QuantisedMatrix) or found.form.codes != E4M3:
            return found
        scale = weight.part(name, by_block(BY_MATRIX), "float32")
        return replace(found, form=replace(found.form, input=True), parts={**found.parts, "input_scales": scale})
