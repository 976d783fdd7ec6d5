"""The tensors of Qwen's MoE layers with a shared expert: one for each matrix of each routed expert, or of all."""

from __future__ import annotations

from bringup.adapters.algebra.expr import Expr, S, stack
from bringup.adapters.planning.adapter import Adapter, either

MLP = "layers.{L}.mlp."


def add_shared_experts(table: Adapter, experts: int, *, fused: bool = False, at: str = "") -> None:
    """Adds the rules of the router, of the shared expert, and of `experts` routed ones.

    `fused`: files may also have all experts in one tensor [e, out, in], with gate and up one after the other
    (transformers' `Qwen3_5MoeExperts`). `at`: the place of `layers` in the checkpoint.
    """
    stored = at + MLP
    table[f"model.{MLP}{{g:gate|shared_expert_gate}}.weight"] = S(stored + "{g}.weight")
    shared = "shared_expert.{x}_proj.weight"
    table[f"model.{MLP}shared_expert.{{x:gate|up|down}}_proj.weight"] = S(stored + shared)
    whole = experts_at(f"{stored}experts.")
    for x, axes in (("gate", "f m"), ("up", "f m"), ("down", "m f")):
        each = stack(S(f"{stored}experts.{{E}}.{x}_proj.weight", axes), over="E", n=experts)
        table[f"model.{MLP}experts.{x}_proj"] = either(whole[x], each) if fused else each


def experts_at(place: str) -> dict[str, Expr]:
    """The matrices of all experts from the tensors [e, out, in] at a place, with gate and up in one tensor."""
    pair = S(f"{place}gate_up_proj", "e (t f) m", t=2).mv("e (t f) m -> t e f m", t=2)
    return {"gate": pair.at("t", 0), "up": pair.at("t", 1), "down": S(f"{place}down_proj", "e m f")}
