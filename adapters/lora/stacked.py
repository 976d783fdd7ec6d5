"""Experts of a layer in one tensor: names in adapters for tensors that a checkpoint publishes expert by expert.

Sources: `conversion_mapping.py` of transformers 5, which concatenates gate and up, [e, 2f, m]; `SwitchGLU` of mlx-lm
(mlx_lm/models/switch_layers.py), and its `SwitchMLP` for experts without gates.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from bringup.adapters.algebra.expr import S
from bringup.adapters.planning.adapter import Adapter
from bringup.graphs.core.axes import sizes_of
from bringup.graphs.core.signature import Signature

EXPERTS = re.compile(r"(.+)\.experts\.(gate|up|down)_proj")  # parameters of experts, in every graph that has them


def stacked(signature: Signature, read: Mapping[str, str]) -> tuple[Adapter, ...]:
    """A table for each program that stacks experts; `read` maps each parameter to a tensor that it is published as."""
    transformers, mlx = Adapter("experts of transformers 5"), Adapter("experts of MLX")
    for name, declared in signature.items():
        found = EXPERTS.fullmatch(name)
        if found is None or name not in read:
            continue
        block, x = found.groups()
        f = sizes_of(declared.axes)["f"]
        gated, stored = f"{block}.experts.gate_proj" in signature, "e m f" if x == "down" else "e f m"
        if gated and x != "down":
            gate, up = S(f"{block}.experts.gate_up_proj", "e (f | f) m").split(1, f, f)
            transformers[name] = gate if x == "gate" else up
        else:
            transformers[name] = S(f"{block}.experts.{x}_proj", stored)
        place, own = read[name].partition(".experts.")[0], f"{x}_proj" if gated else {"up": "fc1", "down": "fc2"}[x]
        mlx[name] = S(f"{place}.switch_mlp.{own}.weight", stored)
        router = f"{block}.gate.weight"
        if x == "gate" and router in signature:
            transformers[router] = S(router, "out in")
    return transformers, mlx
