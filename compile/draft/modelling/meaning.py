"""What transformers' code computes besides the parts that tensors show: factors, the order of norms, rope, routing.

Statements with arithmetic that neither the families of bringup nor a draft compute are `unexplained`: a question.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cache

from bringup.compile.draft.modelling.attention import attention_of
from bringup.compile.draft.modelling.decided import MODULE
from bringup.compile.draft.modelling.experts import experts_of
from bringup.compile.draft.modelling.latent import latent_parts
from bringup.compile.draft.modelling.model import applied_norms, model_of
from bringup.compile.draft.modelling.norms import kind_of, norms_of
from bringup.compile.draft.modelling.part import Part
from bringup.compile.draft.modelling.parts import models_folder, parts_of
from bringup.compile.draft.modelling.routing import routing_of
from bringup.compile.draft.modelling.stated import Meaning

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
SIZED = frozenset({"view", "reshape", "expand", "split", "unflatten"})  # methods whose arguments are integers
FACTORS = (  # the place, and the statement; the group is the key
    ("embedding", r"inputs_embeds = inputs_embeds \* config\.(\w+)"),
    ("residual", r"hidden_states = residual \+ hidden_states \* config\.(\w+)"),
    ("logits /", r"logits = logits / config\.(\w+)"),
    ("logits *", r"logits = logits \* config\.(\w+)"),
    ("logits *", r"logits = self\.lm_head\(hidden_states\) \* config\.(\w+)"),
)
EXPLAINED = (  # other spellings of statements that KNOWN has
    "if 'sliding_attention' in config.layer_types",
    "if self.wg.weight.dtype == torch.float32",  # of a conversion to float32
    "scaling = module.head_dim ** (-0.5)",  # of a function whose caller states the scale
    "scaling = query.size(-1) ** (-0.5)",
    "attn_weights = torch.matmul(query, key.transpose(-1, -2)) * scaling",
    "hidden_states = input @ self.weight.T",  # of a subclass of Linear
    "if self.bias is None",
    "rot_x = torch.stack([-x2, x1], dim=-1).flatten(-2)",
    "target_dtype = torch.get_autocast_dtype(device_type)",  # of a function without effect outside of autocast
    "return torch.amp.autocast_mode._cast(args, device_type, target_dtype)",
)
BY_DEPTH = re.compile(r"config\.(\w+) / math\.sqrt\(config\.num_hidden_layers\)")
EMBED_SCALE = re.compile(r"embed_scale=(config\.hidden_size \*\* 0\.5|config\.\w+)\)$")
SUMS = re.compile(r"(\w+) (/=|= \1 /) \1\.sum\((dim=)?-1, keepdim=True\)")
IN_ORDER = re.compile(r"q\w*, k\w*, v\w* = self\.\w+\(\w+\)\.split\(self\.\w+, dim=2\)$")
ROTATED = re.compile(r"\w+ = query\w*\[(?:\.\.\.|:, :, :), :config\.(\w+)\]")  # the channels that rotate
ROTATIONS = [  # rope of halves, in other words
    ("gpt_oss", "GptOssForCausalLM", "_apply_rotary_emb"), ("gpt_oss", "GptOssForCausalLM", "apply_rotary_pos_emb"),
    ("gpt_oss", "GptOssForCausalLM", "RotaryEmbedding"), ("gptj", "GPTJForCausalLM", "RotaryEmbedding"),
    ("gptj", "GPTJForCausalLM", "create_sinusoidal_positions"), ("gptj", "GPTJForCausalLM", "rotate_every_two"),
    ("gptj", "GPTJForCausalLM", "apply_rotary_pos_emb"),
]  # fmt: skip
BY_LAYER_TYPE = ("gemma3", "Gemma3ForCausalLM", "RotaryEmbedding")  # a rope for each kind of layer

# Sinks as a factor of the result: with l = log sum exp(scores), sigmoid(l - sink) = exp(l) / (exp(l) + exp(sink)).
SINK_FACTOR = frozenset(
    {
        "lse = torch.logsumexp(attn_weights, dim=-1)",
        "sink_scale = (lse - module.sinks.view(1, -1, 1)).sigmoid()",
        "attn_output = attn_output * sink_scale.unsqueeze(-1).to(attn_output.dtype)",
    }
)
ONE_PLUS = [  # layer normalisation that multiplies by 1 + weight
    "device_type = input.device.type",
    "args = _cast_if_autocast_enabled(device_type, input, self.normalized_shape, "
    "self.weight + 1.0, self.bias, self.eps)",
    "return F.layer_norm(*args)",
]


def meaning_of(parts: Mapping[str, Part]) -> Meaning:
    """The meaning of the classes that an architecture uses."""
    every = tuple(text for part in parts.values() for text in part.statements)
    meaning = Meaning(windows=any("sliding_window_causal_mask" in text for text in every), statements=every)
    meaning.latent, latent = latent_parts(parts)
    meaning.applied_norms = applied_norms(parts)
    meaning.in_order = any(text.startswith("query_states = qkv[..., :") or IN_ORDER.match(text) for text in every)
    meaning.rotates = next((match[1] for text in every if (match := ROTATED.fullmatch(text))), "")
    modules = frozenset(
        text.removeprefix("self.") for part in parts.values() for text, value in part.known.items() if value is MODULE
    )
    meaning.eps, meaning.layer_norms = _epsilon(parts), _norm_classes(parts) in ({"LayerNorm"}, {"nn.LayerNorm"})
    meaning.layer_norms &= all(part.name != "LayerNorm" for part in parts.values())
    for part in parts.values():
        norms_of(part, meaning)
        tests = [test for name, test in part.choices.items() if kind_of(part.attributes.get(name, "")) == "m"]
        meaning.layer_test = meaning.layer_test or next(iter(tests), "")
        for text in part.statements:
            if match := re.match(r"(gate|up)\w*, (gate|up)\w* = .*\.chunk\(2, dim=-1\)$", text):
                meaning.gate_first = match[1] == "gate"
        if routing := routing_of(part, parts):
            meaning.routing = routing
            continue
        if part.name in latent:
            continue
        if part.statements == ONE_PLUS and _of_one_class(part, parts):
            meaning.one_plus = True
            continue
        rest = [text for text in part.statements if _plain(text) not in _known() and _computes(text, modules)]
        rest = [text for text in _factors(rest, part, parts, meaning)]
        rest = [text for text in attention_of(rest, part, meaning)]
        rest = [text for text in _router(rest, part, meaning)]
        rest = [text for text in model_of(rest, part, meaning)]
        rest = [text for text in experts_of(rest, part, meaning)]
        if rest and (set(rest) <= _sinks() or frozenset(map(_plain, rest)) == SINK_FACTOR):
            meaning.sinks, rest = True, []
        rest = [text for text in rest if not _shown(text, part)]
        fixed = [name for name, text in part.attributes.items() if _fixed(text, meaning.eps)]
        rest += [f"self.{name} = {part.attributes[name]}" for name in fixed]
        if rest:
            meaning.unexplained.setdefault(part.name, []).extend(dict.fromkeys(rest))
    return meaning


@cache
def _known() -> frozenset[str]:
    """The statements of all classes of KNOWN, whatever their configs are."""
    found = {text for kind, architecture in KNOWN.items() for text in _texts(kind, architecture)}
    more = {text for each in ROTATIONS for text in _texts(*each)}
    return frozenset({*EXPLAINED, *found, *_texts(*BY_LAYER_TYPE), *more})


@cache
def _sinks() -> frozenset[str]:
    """The statements of attention with sinks, which adds their scores to the others for softmax."""
    return _texts("gpt_oss", "GptOssForCausalLM", "eager_attention_forward")


def _shown(text: str, part: Part) -> bool:
    """Whether a statement tests for an MLP or a matrix, which tensors show."""
    match = re.fullmatch(r"if self\.(\w+) is (?:not )?None", text)
    kind = part.attributes.get(match[1], "") if match else ""
    return re.search(r"\w*(MLP|MoE|Moe|Linear)\(", kind) is not None


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
    return text.replace(".float()", "").replace(".to(torch.float32)", "")


def _computes(text: str, modules: frozenset[str]) -> bool:
    """Whether a statement has a decision, or arithmetic other than sums and calls of MOVES and of modules, which are
    attributes of these names."""
    if text.startswith("if "):
        return "self." in text or "config." in text
    if text == "try" or text.startswith("match "):
        return True
    for node in _of_values(ast.parse(text)):
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
            of = ast.unparse(node.func.value) if isinstance(node.func, ast.Attribute) else ""
            module = of in ("self", "super()") or (of.startswith("self.") and name in modules)
            module = module or isinstance(node.func, ast.Name | ast.Subscript)
            if not module and name not in MOVES:
                return True
    return False


def _of_values(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a statement without the arguments of methods that expect sizes alone."""
    yield node
    children: list[ast.AST] = list(ast.iter_child_nodes(node))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        of_torch = ast.unparse(node.func.value) == "torch"  # whose first argument is the tensor
        children = [node.func] if node.func.attr in SIZED and not of_torch else children
    for each in children:
        yield from _of_values(each)


def _epsilon(parts: Mapping[str, Part]) -> float | None:
    """The epsilon of all norms, if the code has it as a number: torch's default for a LayerNorm without one."""
    found: set[str] = set()
    for text in (text for part in parts.values() for text in part.attributes.values()):
        if re.match(r"(nn\.)?\w*Norm\w*\(", text):
            match = re.search(r"\beps=([\w.()-]+)", text)
            found.add(match[1] if match else "1e-05" if text.startswith("nn.LayerNorm(") else "")
    try:
        return float(found.pop()) if len(found) == 1 else None
    except ValueError:
        return None


def _fixed(text: str, eps: float | None) -> bool:
    """Whether `__init__` has a number or an activation of its own where the draft has the config's, except `eps`."""
    norm = eps is None and re.search(r"Norm\(.*\beps=[\d.]", text) is not None
    return norm or re.search(r"ACT2FN\[(?!config\.)", text) is not None


def _of_tensors(node: ast.BinOp | ast.AugAssign) -> bool:
    """Whether the result can be a tensor: not a product of sizes, such as `3 * self.head_size`."""
    names = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
    return not names <= {"self", "config", "int", "math"}


def _factors(rest: list[str], part: Part, parts: Mapping[str, Part], meaning: Meaning) -> Iterator[str]:
    capped = any(text == "logits = torch.tanh(logits)" for text in rest)
    for text in rest:
        if part.name == "ForCausalLM" and "bias=False" in part.attributes.get("lm_head", ""):  # what the head reads
            text = re.sub(r"^hidden_states = hidden_states (?=/ config\.\w+$)", "logits = logits ", text)
        found = next(((place, match[1]) for place, form in FACTORS if (match := re.fullmatch(form, text))), None)
        if text == "logits = torch.tanh(logits)":
            continue
        if found and capped and found[0].startswith("logits"):
            meaning.logit_cap = found[1]
            continue
        if found and meaning.factors.setdefault(*found) == found[1]:
            continue
        scaled = re.fullmatch(r"hidden_states = residual \+ hidden_states \* self\.(\w+)", text)
        if scaled and (match := BY_DEPTH.fullmatch(part.attributes.get(scaled[1], ""))):
            meaning.factors["residual by depth"] = match[1]
            continue
        if "super().forward(input_ids) * self.embed_scale" in text and (scale := _embed_scale(parts)):
            if scale == "config.hidden_size ** 0.5":
                meaning.sqrt_embedding = True
            else:
                meaning.factors["embedding"] = scale.removeprefix("config.")
        else:
            yield text


def _embed_scale(parts: Mapping[str, Part]) -> str:
    """The factor of embedded tokens that a model passes to its embedding: a key, or √m; '' for another."""
    values = [text for part in parts.values() for text in part.attributes.values() if "embed_scale=" in text]
    found = {match[1] if (match := EMBED_SCALE.search(text)) else "" for text in values}
    return found.pop() if len(found) == 1 else ""


def _of_one_class(part: Part, parts: Mapping[str, Part]) -> bool:
    """Whether all norms of an architecture are of the class `part`."""
    return _norm_classes(parts) in ({part.name}, {f"nn.{part.name}"})


def _norm_classes(parts: Mapping[str, Part]) -> set[str]:
    """The classes of norms that attributes are."""
    texts = [text for part in parts.values() for text in part.attributes.values()]
    return {match[1] for text in texts if (match := re.match(r"((?:nn\.)?\w*Norm\w*)\(", text))}


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
    chosen = re.compile(r"topk\((\w+, )?(k=)?config\.\w+, dim=-1(, sorted=False)?\)") if softmax is not None else SUMS
    factors = [(text, match[2]) for text in rest if (match := re.fullmatch(r"(\w+) = \1 \* config\.(\w+)", text))]
    if softmax is not None and best > softmax and len(factors) == 1 and texts.index(factors[0][0]) > best:
        meaning.factors["experts"] = factors[0][1]
        rest = [text for text in rest if text != factors[0][0]]
    rest = [text for text in rest if not SUMS.fullmatch(text) and not chosen.search(text)]
    if softmax is not None and not flagged and not rest:
        meaning.normalises = sums or softmax > best
    yield from rest
