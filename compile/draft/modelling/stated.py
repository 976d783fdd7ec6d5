"""What transformers' code states besides the parts that tensors show."""

from __future__ import annotations

from dataclasses import dataclass, field

from bringup.compile.draft.modelling.routing import Routing


@dataclass(slots=True)
class Meaning:
    """What the code states and tensors do not show.

    `factors`: the config key of a number by its place. `sqrt_embedding`: embedded tokens are multiplied by √m.
    `norms`: the position of norms in a layer, by their order, and `norm_roles` their attributes. `late_norms`:
    norms of q and k come after rope. `rope_in`: a key with a flag for each layer, or `windows`: only layers with a
    window, or `windows or all`. `thetas`: a key with the theta of each
    layer's rope, 0 for none. `score_cap`, `logit_cap`: keys of caps. `normalises`: whether the weights of the
    chosen experts add up to 1. `applied_norms`: attributes of norms that are called. `query_norm`: there are norms
    of queries and keys. `embedding_norm`: the attribute of a norm of embedded tokens. `position_offset`: the first
    row of learned positions. `clamped`: the keys of the factor and the limit of a clamped SwiGLU. `gate_turns`: the
    gate and up alternate. `experts_in_out`: experts store their inputs first. `sinks`: scores of a key without a
    value. `latent`: how rope rotates in MLA, '' for another attention. `one_plus`: layer normalisation multiplies
    by 1 + weight. `clip`: a key of the largest magnitude of queries, keys and values. `inverse_rope`: rope rotates
    by minus the angle. `position_scale`: queries are multiplied by a number that grows with the position.
    `windows`: whether there are sliding windows. `gate_first`: whether the gate is the first half of its product
    with up. `in_order`: one tensor has q, then k, then v. `routing`: sigmoid routing, None for another.
    `layer_test`: the test by which a layer has one of two MLPs, '' if all layers have the same. `gate`: the
    projection whose sigmoid multiplies the result of attention. `rotates`: the key of the number of channels that
    rotate. `eps`: the epsilon of all norms, if it is a number in the code. `statements` are all of them,
    `unexplained` those with a question, by class.
    """

    factors: dict[str, str] = field(default_factory=dict[str, str])
    sqrt_embedding: bool = False
    norms: str = ""
    norm_roles: dict[str, str] = field(default_factory=dict[str, str])
    late_norms: bool = False
    rope_in: str = ""
    thetas: str = ""
    score_cap: str = ""
    logit_cap: str = ""
    normalises: bool | None = None
    clip: str = ""
    one_plus: bool = False
    latent: str = ""
    clamped: tuple[str, str] | None = None
    gate_turns: bool = False
    experts_in_out: bool = False
    sinks: bool = False
    applied_norms: frozenset[str] = frozenset()
    query_norm: bool = False
    embedding_norm: str = ""
    position_offset: int = 0
    inverse_rope: bool = False
    position_scale: bool = False
    windows: bool = False
    gate_first: bool | None = None
    in_order: bool = False
    layer_test: str = ""
    layer_norms: bool = False
    eps: float | None = None
    rotates: str = ""
    gate: str = ""
    routing: Routing | None = None
    statements: tuple[str, ...] = ()
    unexplained: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
