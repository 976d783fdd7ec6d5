"""What transformers' model does before and after its layers: norms of embeddings, learned positions; and its norms."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from bringup.compile.draft.modelling.part import Part
from bringup.compile.draft.modelling.parts import SKIPPED
from bringup.compile.draft.modelling.stated import Meaning

NORM = re.compile(r"(?:nn\.)?\w*Norm\w*\(")
BEFORE = re.compile(r"(hidden_states|inputs_embeds) = self\.(\w+)\((hidden_states|inputs_embeds)\)")
LAYER = re.compile(r"\w+ = \w+\(\s*hidden_states\b")  # a call of each layer
# The position of a token is the number of those before it; the mask of a step without padding is 1.
COUNTED = [
    "position_attention_mask = torch.ones(inputs_embeds.shape[0], seq_length, device=inputs_embeds.device)",
    "position_ids = torch.cumsum(position_attention_mask, dim=1)",
    "position_ids = (position_ids * position_attention_mask - 1).long()",
]
FROM_MASK = [
    "if position_ids is None", "position_ids = torch.cumsum(attention_mask, dim=1)",
    "position_ids = (position_ids * attention_mask - 1).long()", "position_ids = position_ids[:, cache_length:]",
    "return super().forward(position_ids + self.offset)",
]  # fmt: skip
THETA = re.compile(r"theta = config\.(\w+)\[\w+\]")  # of the rope of a layer, 0 for none
BY_THETA = "layer_position_embeddings = position_embeddings_by_theta[theta] if theta else None"


def applied_norms(parts: Mapping[str, Part]) -> frozenset[str]:
    """The attributes of norms that the statements of all parts call."""
    found: set[str] = set()
    for part in parts.values():
        if not part.name.endswith(SKIPPED):
            norms = {name for name, text in part.attributes.items() if NORM.match(text)}
            called = {name for text in part.statements for name in re.findall(r"self\.(\w+)\(", text)}
            found |= norms & called
    return frozenset(found)


def model_of(rest: list[str], part: Part, meaning: Meaning) -> Iterator[str]:
    """Writes what the class with the embedding and the layers states; returns the statements that remain."""
    if part.statements == FROM_MASK:
        meaning.position_offset = int(part.attributes["offset"]) if part.attributes["offset"].isdigit() else 0
        return
    if BY_THETA in part.statements:
        meaning.thetas = next((match[1] for text in part.statements if (match := THETA.fullmatch(text))), "")
    tables = [name for name, text in part.attributes.items() if re.search(r"Embedding\(", text)]
    if not tables or not any("ModuleList(" in text for text in part.attributes.values()):
        yield from rest
        return
    layer = next((at for at, text in enumerate(part.statements) if LAYER.match(text)), 0)
    for text in part.statements[:layer]:
        for name in re.findall(r"self\.(\w+)\(", text):
            if NORM.match(part.attributes.get(name, "")):
                if (match := BEFORE.fullmatch(text)) and not meaning.embedding_norm:
                    meaning.embedding_norm = match[2]
                else:
                    yield text
    counted = [text for text in rest if text in COUNTED]
    yield from (text for text in rest if text not in COUNTED or counted != COUNTED)
