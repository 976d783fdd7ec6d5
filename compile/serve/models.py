"""The accepted values of `model` in a request: the base model's name, and those of its LoRAs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from bringup.compile.serve.error_response import Refused
from bringup.diagnostics import did_you_mean, fail
from bringup.shown import short


class Models:
    """The base model, and LoRAs, whose names are their task ids. Raises BU047 if two have the same name."""

    def __init__(self, base: str, loras: Sequence[str]) -> None:
        if base in loras:
            help = "give the LoRA another name, or the model with --model-name"
            raise fail("BU047", f"the model and a LoRA are both called `{base}`", help=help)
        self.base, self.loras = base, tuple(loras)
        self._created = int(time.time())

    def lora(self, name: str) -> str | None:
        """The task id of a model; None for the base. Raises Refused, 404, for an unknown name."""
        if name == self.base:
            return None
        if name in self.loras:
            return name
        known = (self.base, *self.loras)
        hint = did_you_mean(name, known) or f"available: {', '.join(known)}"
        message = f"unknown model `{short(name)}`; {hint}"
        raise Refused(404, message, param="model", code="model_not_found")

    def listed(self) -> dict[str, Any]:
        """The body of /v1/models."""
        return {"object": "list", "data": [self.entry(name) for name in (self.base, *self.loras)]}

    def entry(self, name: str) -> dict[str, Any]:
        """The body of /v1/models/NAME; the `parent` of a LoRA is its base. Raises as `lora` does."""
        parent = self.base if self.lora(name) else None
        owner = {"object": "model", "created": self._created, "owned_by": "bringup"}
        return {"id": name, **owner, "root": self.base, "parent": parent}
