"""The facts of a draft: sizes, the parts of layers, and open questions."""

from __future__ import annotations

import keyword
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from bringup.compile.draft.facts.classes import CLASSES
from bringup.compile.draft.facts.hints import Hints
from bringup.compile.draft.facts.questions import Question
from bringup.compile.draft.facts.roles import Roles, key_heads
from bringup.compile.draft.facts.sizes import Sizes
from bringup.compile.draft.facts.words import (
    ACTIVATION,
    EPSILONS,
    EXPERT_WIDTH,
    EXPERTS,
    EXPERTS_PER_TOKEN,
    HEAD_DIM,
    MLP_BIAS,
    MULTI_QUERY,
    OUT_BIAS,
    PARALLEL,
    POSITIONS,
    QKV_BIAS,
    SHARED_COUNT,
    SHARED_WIDTH,
    SIZES,
    first,
)
from bringup.compile.draft.modelling.routing import Routing
from bringup.diagnostics import BringupError, fail
from bringup.shown import short
from bringup.spec import TensorInfo

TENSOR_NAME = re.compile(r"[A-Za-z0-9_.\-]+")
# Names of bringup.graphs that a draft may use, and those of the classes that it may contain.
PUBLIC = (
    "ACTIVATIONS", "MLP", "CausalLM", "DecoderConfig", "Embedding", "Experts", "Fields", "Float32RMSNorm", "GatedMLP",
    "GroupedAttention", "LatentAttention", "LayerNorm", "Linear", "Module", "OnePlusRMSNorm", "Param",
    "PlainRMSNorm", "PreNormLayer", "RMSNorm", "RopeConfig", "RoutingConfig", "SigmoidRouter", "SparseMLP",
    "alternating_windows", "layer_norm", "linear", "read_common", "rms_norm", "sliding_window", "top_experts",
    "yarn_scale",
)  # fmt: skip
WRITTEN = (*CLASSES, "Attention")
BY_HAND = "write the graph of a model without that size by hand: bringup explain adding-a-model"
# Names that a class of the draft must not have, because its files use them otherwise.
TAKEN = frozenset({*PUBLIC, *WRITTEN, "Adapter", "ClassVar", "Dialect", "DECODER", "Family", "S", "Self"})


@dataclass(slots=True)
class Facts:
    """`name` is the family's, `title` its graph class. `keys` are config keys by their meaning."""

    name: str
    title: str
    architecture: str
    raw: Mapping[str, Any]
    sizes: Sizes
    keys: dict[str, str]
    hints: Hints
    roles: Roles
    questions: list[Question] = field(default_factory=list[Question])

    def ask(self, text: str, *choices: str) -> Question:
        """A new question; equal ones are one."""
        known = next((each for each in self.questions if each.text == text), None)
        if known is None:
            known = Question(len(self.questions) + 1, text, choices)
            self.questions.append(known)
        return known

    def default(self, key: str, otherwise: Any) -> Any:
        """The default of an absent key, by the hints."""
        found = self.hints.defaults.get(key)
        return otherwise if found is None else found

    @property
    def norms(self) -> str:
        """The position of norms in a layer: before, around, after; `parallel` for one; `parallel two` for two, if the
        config states that layers are parallel; `plain` if none has a weight."""
        found = {number for number in "1234" if self.roles.has(f"norm_{number}")}
        if found and self.hints.meaning and (known := self.hints.meaning.norms):
            return known
        if {"1", "2", "3"} <= found or {"1", "2", "4"} <= found:
            return "around"
        if "1" not in found and {"2", "4"} <= found:
            return "after"
        if found == {"1"}:
            return "parallel"
        if found == {"1", "2"} and self.parallel:
            return "parallel two"
        return "before" if found else "plain"

    @property
    def shared(self) -> str:
        """The class of experts with a shared one, '' for none."""
        both = self.roles.has("shared_gate_up") or (self.roles.has("shared_gate") and self.roles.has("shared_up"))
        whole = both and self.roles.has("shared_down")
        if self.mlp != "experts" or not whole:
            return ""
        if self.routing:
            return "SharedSigmoidMLP"
        return "GatedSharedMLP" if self.roles.has("shared_router") else "SharedMLP"

    @property
    def routing(self) -> Routing | None:
        """Sigmoid routing that the draft writes, None for another."""
        known = self.hints.meaning.routing if self.hints.meaning else None
        gated = self.roles.has("shared_router")
        read = known and (not known.groups or (known.normalise and known.factor))  # as `RoutingConfig.from_fields` does
        return known if read and not gated and self.mlp == "experts" and self.roles.has("router_bias", "") else None

    @property
    def dense(self) -> str:
        """The MLP of layers without experts, if others have experts: gated or plain; '' if there are no such layers."""
        if self.mlp != "experts" or not self.roles.sparse or not self.roles.has("dense_down"):
            return ""
        gated = self.roles.has("dense_gate") or self.roles.has("dense_gate_up")
        return "gated" if gated else "plain"

    @property
    def learned(self) -> bool:
        """Whether there is a table of learned positions, and no rope."""
        return self.roles.has("positions") and self.hints.rope is False

    @property
    def rope_in(self) -> str:
        """The layers that rotate q and k, if not all do: see `Meaning`; `thetas` by `layer_thetas`."""
        return "thetas" if self.layer_thetas else self.hints.meaning.rope_in if self.hints.meaning else ""

    @property
    def layer_thetas(self) -> str:
        """The key with the theta of each layer's rope; '' without one, or if layers rotate by several thetas."""
        key = self.hints.meaning.thetas if self.hints.meaning else ""
        found = cast("list[Any]", self.raw[key]) if isinstance(self.raw.get(key), list) else []
        return key if found and len({theta for theta in found if theta != 0}) <= 1 else ""

    @property
    def parallel(self) -> str:
        """The key that states that attention and the MLP read the same, '' for none."""
        return next((key for key in PARALLEL if self.raw.get(key) is True), "")

    @property
    def multi_query(self) -> str:
        """The key that states that there is one key head, '' for none."""
        return next((key for key in MULTI_QUERY if self.raw.get(key) is True), "")

    @property
    def states_kv_heads(self) -> bool:
        """Whether the config's number of key heads is that of the tensors."""
        return self.sizes.g == self.raw.get(self.keys.get("num_key_value_heads", ""), self.sizes.h)

    @property
    def norm(self) -> str:
        """The class of the norms: a public one, or one that the draft defines."""
        if self.norms == "plain" and not self.roles.has("norm"):
            return self.hints.plain_norm or "PlainNorm"
        if self.roles.has("norm_1", "bias") or self.roles.has("norm", "bias"):
            return "OnePlusLayerNorm" if self.hints.meaning and self.hints.meaning.one_plus else "LayerNorm"
        if self.keys.get("eps", "rms_norm_eps") != "rms_norm_eps" and self.hints.norm in (None, "Float32RMSNorm"):
            return "ScaleNorm"
        return self.hints.norm or "RMSNorm"

    @property
    def mlp(self) -> str:
        """gated, plain or experts."""
        if self.roles.has("router"):
            return "experts"
        gated = any(self.roles.has(role, p) for role in ("gate", "gate_up") for p in ("weight", ""))
        return "gated" if gated else "plain"


def facts_of(raw: Mapping[str, Any], headers: Mapping[str, TensorInfo], hints: Hints, name: str, arch: str) -> Facts:
    """Sizes and roles.

    Raises BU046 if config.json lacks a size, no tensor belongs to a layer, or a name is not valid for a family or for a
    tensor in a rule.
    """
    from bringup.compile.draft.facts.roles import roles_of

    title = title_of(name)
    if odd := next((each for each in headers if not TENSOR_NAME.fullmatch(each)), None):
        rule = "a rule needs letters, digits, `_`, `-` and `.`"
        raise cannot(f"a tensor has the name `{short(odd)}`; {rule}", "rename the tensor, or write the adapter by hand")
    keys = {meaning: key for meaning, words in SIZES.items() if (key := _size_key(meaning, words, raw, hints))}
    widths = [key for key in SIZES["intermediate_size"] if key in raw]
    if "intermediate_size" not in keys and "hidden_size" in keys and (widths or _is_four_times(headers, raw, keys)):
        keys["intermediate_size"] = widths[0] if widths else "intermediate_size"  # null or absent, as in GPT-2, BLOOM
    elif "intermediate_size" not in keys and (width := first(EXPERT_WIDTH, raw)):
        keys["intermediate_size"] = width  # every layer has experts
    lacking = [meaning for meaning in SIZES if meaning not in keys and meaning != "num_key_value_heads"]
    if lacking:
        names = ", ".join(f"`{name}`" for name in SIZES[lacking[0]])
        help = f"add `{lacking[0]}` with the value of the key that states it, or " + BY_HAND
        raise cannot(f"config.json has none of {names}", help)
    values: dict[str, Any] = {meaning: raw.get(key) for meaning, key in keys.items()}
    width: Any = values["intermediate_size"]
    if width is None and type(values["hidden_size"]) is int:
        width = values["intermediate_size"] = 4 * values["hidden_size"]
    if wrong := [keys[meaning] for meaning, value in values.items() if type(value) is not int or value < 1]:
        raise cannot(f"`{wrong[0]}` of config.json is not an integer from 1", "correct config.json")
    more = {"eps": EPSILONS, "act": ACTIVATION, "head_dim": HEAD_DIM, "experts": EXPERTS}
    more |= {"per_token": EXPERTS_PER_TOKEN, "expert_width": EXPERT_WIDTH}
    more |= {"positions": POSITIONS}
    more |= {"shared_width": SHARED_WIDTH, "shared_count": SHARED_COUNT}
    keys |= {meaning: key for meaning, words in more.items() if (key := first(words, raw))}
    latent = hints.meaning is not None and hints.meaning.latent != "" and _count(raw.get("qk_rope_head_dim")) > 0
    keys |= {"head_dim": "qk_rope_head_dim"} if latent else {}
    m, h = values["hidden_size"], values["num_attention_heads"]
    d = _count(raw.get(keys.get("head_dim", ""))) or max(1, m // h)
    sizes = Sizes(
        m=m, h=h, g=key_heads(headers, m, h, d) or values.get("num_key_value_heads", h), d=d,
        f=_count(width), vocab=values["vocab_size"], layers=values["num_hidden_layers"],
        e=_count(raw.get(keys.get("experts", ""))), x=_count(raw.get(keys.get("expert_width", ""))),
        s=_shared_width(raw, keys), latent=latent,
    )  # fmt: skip
    roles = roles_of(headers, sizes, hints)
    if not any(tensors.in_layers for tensors in roles.found.values()):
        raise cannot("no tensor's name has the number of a layer and a shape of these sizes", "see `bringup inspect`")
    return Facts(name, title, arch, raw, sizes, keys, hints, roles)


def _size_key(meaning: str, words: tuple[str, ...], raw: Mapping[str, Any], hints: Hints) -> str | None:
    """The key of a size: one of the known words, or the one that transformers' class has for it. A key of an encoder is
    not that of the decoder."""
    own = hints.aliases.get(meaning, "")
    return first(words, raw) or (own if raw.get(own) is not None and not own.startswith("encoder") else None)


def title_of(name: str) -> str:
    """The graph's class by the family's name: `my_model` is `MyModel`, and `rope`, whose config would have the name of
    a public class, `RopeModel`. Raises BU046 for a name that is not valid for a module and a class."""
    if not re.fullmatch(r"[A-Za-z_]\w{0,99}", name, re.ASCII) or keyword.iskeyword(name):
        shape = "a Python module's name: at most 100 letters, digits and `_`, and no keyword"
        raise cannot(f"`{short(name)}` cannot be {shape}", "name the family: --name NAME")
    title = "".join(word.capitalize() for word in name.split("_"))
    for each in (title, f"{title}Model"):
        if each.isidentifier() and not keyword.iskeyword(each) and not {each, f"{each}Config"} & TAKEN:
            return each
    raise cannot(f"`{name}` has no letter to begin a class's name with", "name the family: --name NAME")


def _is_four_times(headers: Mapping[str, TensorInfo], raw: Mapping[str, Any], keys: Mapping[str, str]) -> bool:
    """Whether a matrix has the shape of an MLP four times as wide as the hidden size."""
    m: Any = raw[keys["hidden_size"]]
    return type(m) is int and any(tuple(info.shape) in ((4 * m, m), (m, 4 * m)) for info in headers.values())


def _shared_width(raw: Mapping[str, Any], keys: Mapping[str, str]) -> int:
    """The width of the shared expert: stated, or that of several routed ones; 0 without one."""
    expert = _count(raw.get(keys.get("expert_width", "")))
    count = _count(raw.get(keys.get("shared_count", "")))
    return _count(raw.get(keys.get("shared_width", ""))) or count * expert


def _count(value: Any) -> int:
    return value if type(value) is int and value > 0 else 0


def bias_key(facts: Facts, part: str) -> tuple[bool, str | None]:
    """Whether the matrices of `qkv`, `o` or `mlp` have a bias, and the key of config.json that states it, if any."""
    mlp = ("dense_up", "dense_gate_up", "dense_down") if facts.dense else ("up", "gate_up", "down")
    members = {"qkv": ("q", "qkv", "kv_a_proj_with_mqa"), "o": ("o",), "mlp": mlp}[part]
    has = any(facts.roles.has(role, "bias") for role in members)
    keys = {"qkv": QKV_BIAS, "o": OUT_BIAS, "mlp": MLP_BIAS}[part]
    return has, next((key for key in keys if facts.raw.get(key) is has), None)


def rotary_dim(facts: Facts) -> int:
    """`rotary_dim`, the number of a head's channels that rotate, if transformers' class derives the fraction of them
    from it, or its code rotates as many; 0 otherwise."""
    if facts.hints.meaning and facts.hints.meaning.rotates == "rotary_dim":
        return _count(facts.raw.get("rotary_dim"))
    rotary, group = _count(facts.raw.get("rotary_dim")), facts.hints.resolved.get("rope_parameters")
    share: Any = cast("Mapping[str, Any]", group).get("partial_rotary_factor") if isinstance(group, Mapping) else None
    return rotary if rotary and share == rotary / facts.sizes.d else 0


def cannot(why: str, help: str) -> BringupError:
    """BU046 for a checkpoint that cannot be drafted."""
    return fail("BU046", f"no draft: {why}", help=help)
