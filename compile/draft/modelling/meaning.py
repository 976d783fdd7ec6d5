"""What transformers' code computes besides the parts that tensors show: factors, the order of norms, rope, routing.

Statements with arithmetic that neither the families of bringup nor a draft compute are `unexplained`: a question.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache

from bringup.compile.draft.modelling.parts import Part, models_folder, parts_of
from bringup.compile.draft.modelling.routing import Routing, routing_of

# Architectures whose drafts are complete: their statements are those of a draft's parts.
KNOWN = {
    "llama": "LlamaForCausalLM", "mixtral": "MixtralForCausalLM", "olmo2": "Olmo2ForCausalLM",
    "phi3": "Phi3ForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen2_moe": "Qwen2MoeForCausalLM",
    "qwen3": "Qwen3ForCausalLM", "qwen3_moe": "Qwen3MoeForCausalLM", "gpt_neox": "GPTNeoXForCausalLM",
    "stablelm": "StableLmForCausalLM", "helium": "HeliumForCausalLM",
}  # fmt: skip
# Calls that move elements, or that have no effect at inference. Calls of modules are plumbing too: their tensors, or
# their own statements, show what they compute.
_MOVES = """
    view transpose reshape contiguous unsqueeze squeeze chunk split size flatten unbind unflatten expand permute cat
    stack repeat_interleave to type type_as float dim size numel update get_seq_length get_mask_sizes dropout len list
    tuple isinstance range enumerate zip index_select items get get_interface hasattr getattr copy arange zeros_like
    zeros empty new_zeros nonzero where one_hot index_add_ index_add linear softmax embedding pop append warning_once
    warning_advice loss_function all_tied_weights_keys slice set min max any
"""
MOVES = frozenset(_MOVES.split())
FACTORS = (  # the place, and the statement; the group is the key
    ("embedding", r"inputs_embeds = inputs_embeds \* config\.(\w+)"),
    ("residual", r"hidden_states = residual \+ hidden_states \* config\.(\w+)"),
    ("logits /", r"logits = logits / config\.(\w+)"),
    ("logits *", r"logits = logits \* config\.(\w+)"),
)
SCALE_OF_SIZE = re.compile(r"self\.head_(dim|size) \*\* \(?-0\.5\)?|1(\.0)? / math\.sqrt\(self\.head_(dim|size)\)")
EXPLAINED = (  # other spellings of statements that KNOWN has
    "if 'sliding_attention' in config.layer_types",
    "scaling = module.head_dim ** (-0.5)",  # of a function whose caller states the scale
    "rot_x = torch.stack([-x2, x1], dim=-1).flatten(-2)",
)
SUMS = re.compile(r"(\w+) (/=|= \1 /) \1\.sum\((dim=)?-1, keepdim=True\)")
BY_LAYER_TYPE = ("gemma3", "Gemma3ForCausalLM", "RotaryEmbedding")  # a rope for each kind of layer

ORDERS = {  # norms (n), attention (a), MLP (m) and sums (+) in a layer: the position of norms, and the norms' numbers
    "na+nm+": ("before", "12"), "nan+nmn+": ("around", "1234"), "an+mn+": ("after", "24"), "nam+": ("parallel", "1"),
}  # fmt: skip


@dataclass(slots=True)
class Meaning:
    """What the code states and tensors do not show.

    `factors`: the config key of a number by its place. `sqrt_embedding`: embedded tokens are multiplied by √m. `norms`:
    the position of norms in a layer, by their order, and `norm_roles` their attributes. `late_norms`: norms of q and k
    come after rope. `rope_in`: a key with a flag for each layer, or `windows`: only layers with a window, or
    `windows or all`. `score_cap`, `logit_cap`: keys of caps. `normalises`: whether the weights of the chosen experts
    add up to 1. `windows`: whether there are sliding windows. `gate_first`: whether the gate is the first half of its
    product with up. `in_order`: one tensor has q, then k, then v. `routing`: sigmoid routing, None for another.
    `layer_test`: the test by which a layer has one of two MLPs, '' if all layers have the same.
    `statements` are all of them, `unexplained` those with a question, by class.
    """

    factors: dict[str, str] = field(default_factory=dict[str, str])
    sqrt_embedding: bool = False
    norms: str = ""
    norm_roles: dict[str, str] = field(default_factory=dict[str, str])
    late_norms: bool = False
    rope_in: str = ""
    score_cap: str = ""
    logit_cap: str = ""
    normalises: bool | None = None
    windows: bool = False
    gate_first: bool | None = None
    in_order: bool = False
    layer_test: str = ""
    routing: Routing | None = None
    statements: tuple[str, ...] = ()
    unexplained: dict[str, list[str]] = field(default_factory=dict[str, list[str]])


def meaning_of(parts: Mapping[str, Part]) -> Meaning:
    """The meaning of the classes that an architecture uses."""
    every = tuple(text for part in parts.values() for text in part.statements)
    meaning = Meaning(windows=any("sliding_window_causal_mask" in text for text in every), statements=every)
    meaning.in_order = any(text.startswith("query_states = qkv[..., :") for text in every)
    for part in parts.values():
        _norms(part, meaning)
        tests = [test for name, test in part.choices.items() if _kind(part.attributes[name]) == "m"]
        meaning.layer_test = meaning.layer_test or next(iter(tests), "")
        for text in part.statements:
            if match := re.match(r"(gate|up)\w*, (gate|up)\w* = .*\.chunk\(2, dim=-1\)$", text):
                meaning.gate_first = match[1] == "gate"
        if routing := routing_of(part, parts):
            meaning.routing = routing
            continue
        rest = [text for text in part.statements if _plain(text) not in _known() and _computes(text)]
        rest = [text for text in _factors(rest, part, parts, meaning)]
        rest = [text for text in _attention(rest, part, meaning)]
        rest = [text for text in _router(rest, part, meaning)]
        rest += [f"self.{name} = {text}" for name, text in part.attributes.items() if _fixed(text)]
        if rest:
            meaning.unexplained.setdefault(part.name, []).extend(dict.fromkeys(rest))
    return meaning


@cache
def _known() -> frozenset[str]:
    """The statements of all classes of KNOWN, whatever their configs are."""
    found = {text for kind, architecture in KNOWN.items() for text in _texts(kind, architecture)}
    return frozenset({*EXPLAINED, *found, *_texts(*BY_LAYER_TYPE)})


@cache
def _texts(kind: str, architecture: str, name: str = "") -> frozenset[str]:
    """The statements of a family's classes, or of one of them; empty without transformers."""
    folder = models_folder()
    file = folder / kind / f"modeling_{kind}.py" if folder else None
    if file is None or not file.is_file():
        return frozenset()
    parts = parts_of(file, architecture, {}).values()
    return frozenset(_plain(text) for part in parts if name in ("", part.name) for text in part.statements)


def _plain(text: str) -> str:
    """A statement without its conversions to float32, which the graph's own parts do as well."""
    return text.replace(".float()", "")


def _computes(text: str) -> bool:
    """Whether a statement has a decision, or arithmetic other than sums and calls of MOVES and of modules."""
    if text.startswith("if "):
        return "self." in text or "config." in text
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.BinOp | ast.AugAssign) and not isinstance(node.op, ast.Add) and _of_tensors(node):
            return True
        if (
            isinstance(node, ast.UnaryOp)
            and isinstance(node.op, ast.USub)
            and not isinstance(node.operand, ast.Constant)
        ):
            return True
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            module = isinstance(node.func, ast.Attribute) and ast.unparse(node.func.value) in ("self", "super()")
            module = module or isinstance(node.func, ast.Name | ast.Subscript)
            if not module and name not in MOVES:
                return True
    return False


def _fixed(text: str) -> bool:
    """Whether `__init__` has a number or an activation of its own where the draft takes the config's."""
    return re.search(r"Norm\(.*\beps=[\d.]", text) is not None or re.search(r"ACT2FN\[(?!config\.)", text) is not None


def _of_tensors(node: ast.BinOp | ast.AugAssign) -> bool:
    """Whether the result can be a tensor: not a product of sizes, such as `3 * self.head_size`."""
    names = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
    return not names <= {"self", "config", "int", "math"}


def _factors(rest: list[str], part: Part, parts: Mapping[str, Part], meaning: Meaning) -> Iterator[str]:
    capped = any(text == "logits = torch.tanh(logits)" for text in rest)
    for text in rest:
        found = next(((place, match[1]) for place, form in FACTORS if (match := re.fullmatch(form, text))), None)
        if text == "logits = torch.tanh(logits)":
            continue
        if found and capped and found[0].startswith("logits"):
            meaning.logit_cap = found[1]
            continue
        if found and meaning.factors.setdefault(*found) == found[1]:
            continue
        if "super().forward(input_ids) * self.embed_scale" in text and _sqrt_scale(parts):
            meaning.sqrt_embedding = True
        else:
            yield text


def _sqrt_scale(parts: Mapping[str, Part]) -> bool:
    values = [text for part in parts.values() for text in part.attributes.values() if "embed_scale=" in text]
    return bool(values) and all("embed_scale=config.hidden_size ** 0.5" in text for text in values)


def _attention(rest: list[str], part: Part, meaning: Meaning) -> Iterator[str]:
    """The scale and the cap of scores, the layers with rope, and whether norms come after it."""
    call = next((text for text in part.statements if "attention_interface(" in text and "scaling=" in text), "")
    if stated := re.search(r"scaling=(?:self\.)?([\w.]+)", call):
        scale = part.attributes.get(stated[1], stated[1])
        if match := re.fullmatch(r"config\.(\w+)(?P<root> \*\* \(?-0\.5\)?)?", scale):
            meaning.factors["scores root" if match["root"] else "scores"] = match[1]
        elif not SCALE_OF_SIZE.fullmatch(scale):
            yield f"self.scaling = {scale}"
    for text in part.statements:
        if match := re.search(r"softcap=config\.(\w+)", text):
            meaning.score_cap = match[1]
    turned = next((at for at, text in enumerate(part.statements) if "apply_rotary_pos_emb(" in text), None)
    if turned is not None:
        after = part.statements[turned + 1 :]
        meaning.late_norms |= any(re.search(r"self\.(q|k|query|key)_(norm|layernorm)\(", text) for text in after)
    for text in rest:
        capped = part.name == "eager_attention_forward" and ("softcap" in text or "torch.tanh(attn_weights)" in text)
        layers = _rope_in(text) if turned is not None else ""
        meaning.rope_in = layers or meaning.rope_in
        if not capped and not layers:
            yield text


def _rope_in(text: str) -> str:
    """The layers for which a test is true, '' for another statement."""
    if match := re.fullmatch(r"if config\.(\w+)\[layer_idx\]", text):
        return match[1]
    if text in ("if self.sliding_window is not None", "if self.sliding_window"):
        return "windows"
    return "windows or all" if text == "if config.sliding_window is None or self.is_sliding" else ""


def _router(rest: list[str], part: Part, meaning: Meaning) -> Iterator[str]:
    """Softmax over all experts and then the best, or the best and then softmax: the second adds up to 1."""
    texts = part.statements
    if not any("topk(" in text for text in texts):
        yield from rest
        return
    softmax = next((at for at, text in enumerate(texts) if "softmax(" in text), None)
    best = next((at for at, text in enumerate(texts) if "topk(" in text), 0)
    sums = any(SUMS.fullmatch(text) for text in texts)
    flagged = any("config.norm_topk_prob" in text for text in texts)
    chosen = re.compile(r"topk\((\w+, )?config\.\w+, dim=-1\)") if softmax is not None else SUMS
    rest = [text for text in rest if not SUMS.fullmatch(text) and not chosen.search(text)]
    if softmax is not None and not flagged and not rest:
        meaning.normalises = sums or softmax > best
    yield from rest


def _norms(part: Part, meaning: Meaning) -> None:
    """The order of the parts of a layer, and the roles that it gives to norms."""
    kinds = {name: _kind(text) for name, text in part.attributes.items()}
    if not {"a", "m"} <= set(kinds.values()):
        return
    order, names = "", list[str]()
    for text in part.statements:
        for name in re.findall(r"self\.(\w+)\(", text):
            if kinds.get(name):
                order += kinds[name]
                names += [name] if kinds[name] == "n" else []
        if re.match(r"hidden_states = residual \+ ", text):
            order += "+"
    if order in ORDERS:
        meaning.norms, numbers = ORDERS[order]
        meaning.norm_roles = {name: f"norm_{number}" for name, number in zip(names, numbers, strict=True)}


def _kind(text: str) -> str:
    call = re.match(r"(\w+)\(", text)
    word = call[1] if call else ""
    if word.endswith("Norm"):
        return "n"
    if word.endswith("Attention"):
        return "a"
    return "m" if re.search("MLP|Moe|MoE|FeedForward", word) else ""
