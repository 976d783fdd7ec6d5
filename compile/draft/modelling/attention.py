"""What transformers' attention computes besides projections and rope: scale, cap, clipping, order, positions."""

from __future__ import annotations

import re
from collections.abc import Iterator

from bringup.compile.draft.modelling.part import Part
from bringup.compile.draft.modelling.stated import Meaning

SCALE_OF_SIZE = re.compile(r"self\.head_(dim|size) \*\* \(?-0\.5\)?|1(\.0)? / math\.sqrt\(self\.head_(dim|size)\)")
CLIP = re.compile(r"(query|key|value)_states\.clamp_\(min=-config\.(\w+), max=config\.\2\)")
GATED = re.compile(r"(\w+) = \(?\1 \* torch\.sigmoid\((?:(\w+)|self\.(\w+)\(hidden_states\))(?:\.float\(\))?\).*")
EARLY = re.compile(r"(\w+) = self\.\w*q\w*\(\w+\) \* self\.(\w+)")
QUERY_NORM = re.compile(r"self\.(q|k|query|key)_(norm|layernorm)\(")
HALVES = ["x1 = x[..., :x.shape[-1] // 2]", "x2 = x[..., x.shape[-1] // 2:]"]
LOCAL = "config.layer_types[layer_idx] == 'sliding_attention'"
BACK = [*HALVES, "return torch.cat((x2, -x1), dim=-1)"]  # rotates by minus the angle
# Queries are multiplied by a number that grows with the position (Llama 4).
BY_POSITION = [
    "scaling = 1 + beta * torch.log(1 + torch.floor(positions_ids / max_position_embeddings))",
    "return scaling[:, None, :, None]",
]
SCALED = (
    "query_states = query_states * get_llama_4_attn_scale(position_ids, "
    "config.rope_parameters.get('llama_4_scaling_beta'), "
    "config.rope_parameters.get('original_max_position_embeddings')).to(query_states.dtype)"
)


def attention_of(rest: list[str], part: Part, meaning: Meaning) -> Iterator[str]:
    """Writes what a part states of attention to `meaning`; returns the statements that remain."""
    call = next((text for text in part.statements if "attention_interface(" in text and "scaling=" in text), "")
    scale, early = _scale(part, call)
    if match := re.fullmatch(r"config\.(\w+)(?P<root> \*\* \(?-0\.5\)?)?", scale):
        meaning.factors["scores root" if match["root"] else "scores"] = match[1]
    elif scale and not SCALE_OF_SIZE.fullmatch(scale):
        yield f"self.scaling = {scale}"
    for text in part.statements:
        if match := re.search(r"softcap=config\.(\w+)", text):
            meaning.score_cap = match[1]
    rotated = next((at for at, text in enumerate(part.statements) if "apply_rotary_pos_emb(" in text), None)
    meaning.query_norm |= any(QUERY_NORM.search(text) for text in part.statements)
    meaning.late_norms |= rotated is not None and any(
        QUERY_NORM.search(text) for text in part.statements[rotated + 1 :]
    )
    clipped, (gate, gated) = _clip(part, rotated), _gate(part, call)
    meaning.clip, meaning.gate = clipped or meaning.clip, gate or meaning.gate
    for text in rest:
        capped = part.name == "eager_attention_forward" and ("softcap" in text or "torch.tanh(attn_weights)" in text)
        layers = _rope_in(text, part) if rotated is not None else ""
        meaning.rope_in = layers or meaning.rope_in
        known = capped or layers or text in (early, gated) or (clipped and CLIP.fullmatch(text))
        if not known and not _position(text, part, meaning):
            yield text


def _scale(part: Part, call: str) -> tuple[str, str]:
    """The factor of the scores, '' if a part has none, and the statement that multiplies queries by it instead."""
    stated = re.search(r"scaling=(?:self\.)?([\w.]+)", call)
    scale = part.attributes.get(stated[1], stated[1]) if stated else ""
    if scale and _number(scale) == 1 and (early := _early_scale(part)):
        return early
    return scale, ""


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _early_scale(part: Part) -> tuple[str, str] | None:
    """The scale that multiplies the projected queries instead of the scores, and the statement; None without one."""
    found = [match for text in part.statements if (match := EARLY.fullmatch(text))]
    return (part.attributes.get(found[0][2], ""), found[0][0]) if len(found) == 1 else None


def _gate(part: Part, call: str) -> tuple[str, str]:
    """The projection of the input whose sigmoid multiplies the result of attention before the last matrix, and the
    statement; '' without one."""
    texts = part.statements
    at = next((at for at, text in enumerate(texts) if GATED.fullmatch(text)), 0)
    match = GATED.fullmatch(texts[at]) if texts else None
    last = texts[at + 1] if at + 1 < len(texts) else ""
    if match is None or not call or texts.index(call) > at or f"self.o_proj({match[1]})" not in last:
        return "", ""
    named = [re.fullmatch(rf"{match[2]} = self\.(\w+)\(hidden_states\)", text) for text in texts[:at]]
    found = [match[3]] if match[3] else [each[1] for each in named if each]
    changed = any(text.startswith("hidden_states = ") for text in texts[:at])
    return (found[0], texts[at]) if len(found) == 1 and not changed else ("", "")


def _clip(part: Part, rotated: int | None) -> str:
    """The key of the largest magnitude of queries, keys and values, if all are clipped after any norm and before rope;
    '' otherwise."""
    found = [(at, match) for at, text in enumerate(part.statements) if (match := CLIP.fullmatch(text))]
    norms = [at for at, text in enumerate(part.statements) if re.search(r"self\.\w*norm\(", text)]
    three = {match[1] for _, match in found} == {"query", "key", "value"} and len({match[2] for _, match in found}) == 1
    if not three or rotated is None or not all(max(norms, default=-1) < at < rotated for at, _ in found):
        return ""
    return found[0][1][2]


def _position(text: str, part: Part, meaning: Meaning) -> bool:
    """Whether a statement turns rope's direction, or scales queries by their position."""
    if part.name == "rotate_half" and part.statements == BACK and text == BACK[-1]:
        meaning.inverse_rope = True
        return True
    if text == SCALED or part.statements == BY_POSITION:
        meaning.position_scale = True
        return True
    return False


def _rope_in(text: str, part: Part) -> str:
    """The layers for which a test is true, '' for another statement."""
    if (match := re.fullmatch(r"if self\.(\w+)", text)) and part.attributes.get(match[1]) == LOCAL:
        return "windows"
    if match := re.fullmatch(r"if config\.(\w+)\[layer_idx\]", text):
        return match[1]
    if text in ("if self.sliding_window is not None", "if self.sliding_window"):
        return "windows"
    return "windows or all" if text == "if config.sliding_window is None or self.is_sliding" else ""
