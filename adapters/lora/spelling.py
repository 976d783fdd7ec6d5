"""The names and layouts of a module's factors in the files of each program.

Sources: peft (`get_peft_model_state_dict`; `ParamWrapper.get_delta_weight` of src/peft/tuners/lora/layer.py);
ml-explore/mlx-lm (mlx_lm/tuner/lora.py); ggml-org/llama.cpp (convert_lora_to_gguf.py);
NVIDIA-NeMo/Megatron-Bridge (models/conversion/peft_bridge.py).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from bringup.adapters.lora.factors import PEFT, PEFT_EXPERTS, Layout


class Part(NamedTuple):
    """One factor: `side` is `a` or `b`, or `m` for magnitudes of DoRA. `depth`: the number of wrappers of other
    parameters around this one."""

    module: str
    side: str
    embedding: bool = False
    depth: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Spelling:
    """`pattern` matches the factors' names; `copy` those of base tensors that are saved with them."""

    name: str
    pattern: re.Pattern[str]
    copy: re.Pattern[str] | None = None
    plain: Layout = PEFT
    embedding: Layout = PEFT
    experts: Layout = PEFT_EXPERTS
    embeddings: tuple[str, ...] = ()  # modules that are looked up, if the factors' names do not show it
    tie: bool = False  # the LoRA of an embedding is also added to a head that is tied to it

    def part(self, name: str) -> Part | None:
        """The factor that a tensor is; None if it is not one."""
        found = self.pattern.fullmatch(name)
        if found is None:
            return None
        words = found.groupdict()
        module = words.get("module") or words["stem"] + (words["own"] or "")
        embedding = bool(words.get("embedding")) or module.endswith(self.embeddings or ("\0",))
        side = words["side"] or "magnitude_vector"
        side = {"in": "a", "out": "b", "magnitude_vector": "m"}.get(side, side.lower())
        return Part(module, side, embedding, (words.get("depth") or "").count(".base_layer"))

    def copied(self, name: str) -> str | None:
        """The module whose own weight a tensor is, by the base's name."""
        found = self.copy.fullmatch(name) if self.copy else None
        return found["module"] if found else None

    def layout(self, *, embedding: bool, experts: bool) -> Layout:
        return self.embedding if embedding else self.experts if experts else self.plain


SPELLINGS = {
    "peft": Spelling(
        name="peft",
        pattern=re.compile(
            r"(?:base_model\.model\.)?(?P<module>.+?)(?P<depth>(?:\.base_layer)*)"
            r"\.lora_(?P<embedding>embedding_)?(?P<side>[AB]|magnitude_vector)(?:\.(?!bias|weight)[^.]+)?(?:\.weight)?"
        ),
        copy=re.compile(r"(?:base_model\.model\.)?(?P<module>.+)\.base_layer\.weight"),
    ),
    "mlx": Spelling(
        name="mlx",
        pattern=re.compile(r"(?P<module>.+)\.(?:lora_(?P<side>[ab])|m)"),
        plain=Layout(a="in rank", b="rank out"),
        embedding=Layout(a="in rank", b="rank out"),
        experts=Layout(a="e rank in", b="e out rank"),
        embeddings=("embed_tokens", "wte", "word_embeddings", "embed_in"),
        tie=True,
    ),
    "gguf": Spelling(
        name="gguf",
        pattern=re.compile(r"(?P<module>.+)\.weight\.lora_(?P<side>[ab])"),
        embedding=Layout(a="in rank", b="out rank"),
        experts=Layout(a="e rank in", b="e out rank"),
        embeddings=("token_embd",),
    ),
    "megatron": Spelling(
        name="Megatron-Bridge",
        pattern=re.compile(
            r"(?:module\.)*(?P<stem>.+)\.adapter(?P<own>\.adapter_\w+)?\.linear_(?P<side>in|out)\.weight"
        ),
    ),
}
