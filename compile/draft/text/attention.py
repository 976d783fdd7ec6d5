"""The text of a drafted attention, for what `GroupedAttention` has no setting for."""

from __future__ import annotations

from dataclasses import dataclass, field

from bringup.compile.draft.facts.facts import Facts
from bringup.compile.draft.modelling.stated import Meaning

NAME = "Attention"


@dataclass(slots=True)
class Own:
    """What a drafted attention has of its own: `features` of its docstring, declared attributes, and by attribute the
    value that `layer` gives it. `early` and `late` are statements before and after rope."""

    features: list[str] = field(default_factory=list[str])
    declared: dict[str, str] = field(default_factory=dict[str, str])
    given: dict[str, str] = field(default_factory=dict[str, str])
    early: list[str] = field(default_factory=list[str])
    late: list[str] = field(default_factory=list[str])

    def add(self, feature: str, name: str = "", declared: str = "", given: str = "") -> None:
        """A feature, and the attribute that it needs."""
        self.features.append(feature)
        if name:
            self.declared[name], self.given[name] = declared, given


def own_attention(facts: Facts) -> Own | None:
    """What the draft's attention computes of its own, None if `GroupedAttention` computes all."""
    meaning, roles, own = facts.hints.meaning or Meaning(), facts.roles, Own()
    norms = (
        ["q_NHD, k_NGD = self.q_norm(q_NHD), self.k_norm(k_NGD)"]
        if roles.has("q_norm") or plain_query_norm(facts)
        else []
    )
    if own_norms(facts):
        own.add("each head has its own norm")
        own.given |= {f"{x}_norm": f"HeadNorm({n}, d, config.eps)" for x, n in (("q", "h"), ("k", "g"))}
    if facts.learned:
        own.add("nothing rotates: positions are learned")
    if facts.rope_in:
        own.add("some layers do not rotate queries and keys", "rotates", "True", "config.rotated[index]")
    if meaning.inverse_rope:
        own.add("rope rotates by minus the angle")
    if meaning.late_norms and norms:
        own.add("the norms of queries and keys come after rope")
        own.late += norms
    elif norms:
        own.early += norms
    if meaning.clip:
        own.add("queries, keys and values are clipped", "clip", "1.0", "config.clip")
        own.early.append("q_NHD, k_NGD, v_NGD = (each.clamp(-self.clip, self.clip) for each in (q_NHD, k_NGD, v_NGD))")
    if meaning.position_scale:
        own.add("queries grow with the logarithm of their position", "growth", "(0.0, 1)", "config.growth")
        own.late += [
            "factor, period = self.growth",
            "stretched_N = 1 + torch.floor(step.positions.float() / period)",
            "q_NHD = q_NHD * (1 + factor * torch.log(stretched_N))[:, None, None].to(q_NHD.dtype)",
        ]
    _before_the_last_matrix(facts, own)
    return own if own.features else None


def _before_the_last_matrix(facts: Facts, own: Own) -> None:
    """A gate, and a norm."""
    roles = facts.roles
    if roles.has("o_gate"):
        own.add("the sigmoid of a projection of the input multiplies the result")
        axes, width = ("h", "") if gate_of_heads(facts) else ("(h d)", "d=d, ")
        bias = roles.has("o_gate", "bias")
        own.given["gate_proj"] = f'Linear("out:{axes} in:m", h=h, {width}m=m, bias={bias})'
    if roles.has("o_norm"):
        own.add("a norm precedes the last matrix")
        own.given["o_norm"] = "self.norm(h * d, config.eps)"


def gate_of_heads(facts: Facts) -> bool:
    """Whether the gate of attention has one value for each head."""
    shape = facts.roles.found["o_gate", "weight"].shape
    return shape[0] == facts.sizes.h or (shape[1] == facts.sizes.h and shape[0] == facts.sizes.m)


def plain_query_norm(facts: Facts) -> bool:
    """Whether queries and keys have norms without a weight, as all others of the model."""
    meaning, plain = facts.hints.meaning, facts.norms == "plain" and not facts.roles.has("norm")
    return plain and meaning is not None and meaning.query_norm and not facts.roles.has("q_norm")


def own_norms(facts: Facts) -> bool:
    """Whether each head has its own weights of the norm of queries and of keys."""
    if not facts.roles.has("q_norm"):
        return False
    tensors = facts.roles.found["q_norm", "weight"]
    return len(tensors.shape) == 2 or "{E}" in tensors.stem


def wide_norms(facts: Facts) -> bool:
    """Whether one norm is over the queries of all heads."""
    sizes = facts.sizes
    return (
        facts.roles.has("q_norm")
        and sizes.h > 1
        and facts.roles.found["q_norm", "weight"].shape == (sizes.h * sizes.d,)
    )


LATENT = """        attention = LatentAttention(
            m, config.num_heads, q=config.q_rank, c=config.kv_rank,
            n=config.plain_dim, p=config.head_dim, v=config.value_dim,
            bias={bias}, interleaved=config.interleaved,
            scale_factor=yarn_scale(config.rope.factor, config.rope.mscale_all_dim) ** 2,
        )
"""


def attention_class(facts: Facts) -> str:
    """The class of attention, '' if `GroupedAttention` suffices."""
    own = own_attention(facts)
    if own is None or facts.sizes.latent:
        return ""
    back = "-sin" if facts.hints.meaning and facts.hints.meaning.inverse_rope else "sin"
    turn = [f"q_NHD, k_NGD = rope(q_NHD, cos, {back}), rope(k_NGD, cos, {back})"]
    if facts.learned:
        turn = []
    if facts.rope_in:
        turn = ["if self.rotates:", *(f"    {each}" for each in turn)]
    heads = "q_NHD, k_NGD, v_NGD = (each.unflatten(1, (-1, self.head_dim)) for each in "
    if wide_norms(facts):
        three = ["q, k, v = self.q_norm(self.q_proj(x_Nm)), self.k_norm(self.k_proj(x_Nm)), self.v_proj(x_Nm)"]
        heads += "(q, k, v))"
        own.early = [each for each in own.early if "_norm(" not in each]
    else:
        three, heads = [], heads.replace("each.unflatten", "each(x_Nm).unflatten")
        heads += "(self.q_proj, self.k_proj, self.v_proj))"
    sinks = ", sinks_H=self.sinks" if facts.roles.has("sinks", "") else ""
    last = "mixed.flatten(1)"
    if facts.roles.has("o_gate"):
        gate = "self.gate_proj(x_Nm).sigmoid()"
        last = f"(mixed * {gate}[..., None]).flatten(1)" if gate_of_heads(facts) else f"{last} * {gate}"
    last = f"self.o_norm({last})" if facts.roles.has("o_norm") else last
    body = [
        *three, heads, *own.early, *turn, *own.late,
        "keys, values = self.cache(step, k_NGD, v_NGD)",
        "mixed = attention(",
        "    q_NHD, keys, values, step, self.scale, self.window,",
        f"    ring=self.cache.ring{sinks}, softcap=self.softcap,",
        ")",
        f"return self.o_proj({last})",
    ]  # fmt: skip
    title = "; ".join(own.features)
    if "torch." in "".join(body):
        body.insert(0, "import torch\n")
    declared = "".join(f"    {name} = {value}\n" for name, value in own.declared.items())
    return (
        f'class {NAME}(GroupedAttention):\n    """{title[:1].upper()}{title[1:]}."""\n\n'
        + (f"{declared}\n" if declared else "")
        + "    def forward(self, x_Nm, cos, sin, step):\n"
        + "".join(f"        {line}\n" for line in body)
    )
