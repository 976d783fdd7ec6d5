"""Text models of LLaVA and Mistral 3: Llama, Mistral, Ministral 3, Mistral 4 or Qwen2 under a vision model's names.

LLaVA: Liu et al. 2023. Mistral 3 is the model type of Mistral Small 3.1, Ministral 3 and Mistral Small 4, whose modules
have the same names in transformers. config.json has the text model's keys under `text_config`. A config of LLaVA's
original code (github.com/haotian-liu/LLaVA) is the text model's own, with keys about images among them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from bringup.diagnostics import fail
from bringup.graphs.config.fields import Fields
from bringup.graphs.config.hf_config import BlockConfig
from bringup.graphs.core.graph import Graph, TextModel
from bringup.graphs.core.module import Module
from bringup.graphs.core.step import Step
from bringup.graphs.decoder import CausalLM, Decoder, DecoderConfig
from bringup.graphs.llama import Llama, LlamaConfig
from bringup.graphs.ministral3 import Ministral3, Ministral3Config
from bringup.graphs.mistral4 import Mistral4, Mistral4Config
from bringup.graphs.qwen2 import Qwen2, Qwen2Config
from bringup.shown import short

if TYPE_CHECKING:
    from torch import Tensor


def _sizes(vocab: int, ffn: int, positions: int, layers: int = 32) -> dict[str, int]:
    common = {"hidden_size": 4096, "num_hidden_layers": layers, "num_attention_heads": 32}
    return common | {"vocab_size": vocab, "intermediate_size": ffn, "max_position_embeddings": positions}


# By `model_type`: the text family, and the sizes that transformers 5.23 uses if a `text_config` has none.
TEXTS: dict[str, tuple[type[DecoderConfig], dict[str, int]]] = {
    "llama": (LlamaConfig, _sizes(32000, 11008, 2048)),
    "ministral3": (Ministral3Config, _sizes(131072, 14336, 1 << 18, 34)),
    "mistral": (LlamaConfig, _sizes(32000, 14336, 4096 * 32)),
    "mistral4": (Mistral4Config, _sizes(131072, 12288, 1 << 20, 36)),
    "qwen2": (Qwen2Config, _sizes(151936, 22016, 32768)),
}
GRAPHS: dict[str, type[CausalLM]] = {"llama": Llama, "ministral3": Ministral3, "mistral4": Mistral4, "qwen2": Qwen2}
MISTRAL3 = "mistral3"
# The text model of a Mistral 3 without a `text_config`: Mistral Small 3.1.
MISTRAL_SMALL = {
    "model_type": "mistral", "hidden_size": 5120, "num_hidden_layers": 40, "num_attention_heads": 32, "head_dim": 128,
    "vocab_size": 131072, "intermediate_size": 32768, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5,
    "rope_theta": 1e9, "sliding_window": None,
}  # fmt: skip
ORIGINAL = {
    "llava_mistral": "mistral",
    "llava_qwen": "qwen2",
    "llava_qwen2": "qwen2",
}  # `model_type` of the original code; all others: llama

# Keys about images, and about the original code's training on them: none affects a logit of text.
IMAGES = frozenset(
    """
    vision_config image_token_index image_token_id image_seq_length ignore_index projector_hidden_act
    vision_feature_select_strategy vision_feature_layer multimodal_projector_bias spatial_merge_size
    use_mm_proj mm_hidden_size mm_patch_merge_type mm_projector_lr mm_projector_type mm_resampler_type mm_tunable_parts
    mm_use_im_patch_token mm_use_im_start_end mm_vision_select_feature mm_vision_select_layer mm_vision_tower
    mm_vision_tower_lr tune_mm_mlp_adapter tune_mm_vision_resampler freeze_mm_mlp_adapter freeze_mm_vision_resampler
    unfreeze_mm_vision_tower image_aspect_ratio image_crop_resolution image_grid_pinpoints image_split_resolution
    tokenizer_model_max_length tokenizer_padding_side
    """.split()  # noqa: SIM905  as a list literal it would be 40 lines
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LlavaConfig(BlockConfig):
    """`block` is the config of the text model."""

    family: ClassVar[str] = "llava"
    model_types: ClassVar[tuple[str, ...]] = (
        *("llava", "llava_llama", "llava_mistral", "llava_qwen", "llava_qwen2"),
        MISTRAL3,
    )

    block: DecoderConfig

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        """Raises BU125 for an unknown text model."""
        kind, words = _text_of(fields)
        text, absent = TEXTS[kind]
        words = absent | words | {"model_type": kind}
        allowed = {key: fields.allowed.pop(key) for key in words.keys() & fields.allowed}
        inner = Fields(words, f"llava's {kind}", allowed, at="text_config." if "text_config" in fields.raw else "")
        config = cls(block=text.from_fields(inner))
        fields.findings += inner.done()
        return config


def _text_of(fields: Fields) -> tuple[str, dict[str, Any]]:
    """The text model's type and the keys of its config. Raises BU125 for a type that is not in TEXTS."""
    fields.read |= IMAGES
    is_mistral3 = fields.raw.get("model_type") == MISTRAL3
    kind, words = _kind_in_mistral3(fields) if is_mistral3 else _kind_in_llava(fields)
    if kind not in TEXTS:
        known = ", ".join(f"`{name}`" for name in TEXTS)
        raise fail("BU125", f"the llava graph does not implement the text model `{short(kind)}`, but {known}")
    return kind, words


def _kind_in_mistral3(fields: Fields) -> tuple[str, dict[str, Any]]:
    """The head is tied by the outer key alone, as in transformers, whose default is true."""
    words = fields.group("text_config")
    if fields.raw.get("text_config") is None:
        words = MISTRAL_SMALL
    words = words | {"tie_word_embeddings": fields.get("tie_word_embeddings", bool, True)}
    return str(words.get("model_type", "mistral")), words


def _kind_in_llava(fields: Fields) -> tuple[str, dict[str, Any]]:
    if "hidden_size" in fields.raw and "text_config" not in fields.raw:
        words = {key: value for key, value in fields.raw.items() if key not in fields.read}
        fields.read |= words.keys()
        return ORIGINAL.get(fields.get("model_type", str, "llava"), "llama"), words
    words = fields.group("text_config")
    fields.read.add("vocab_size")  # early files repeat it outside of `text_config`
    if fields.get("tie_word_embeddings", bool, False):  # outside or inside of `text_config`
        words = words | {"tie_word_embeddings": True}
    return str(words.get("model_type", "llama")), words


class Model(Module):
    """The module in which transformers has the vision tower and the projector next to the decoder."""

    def __init__(self, language_model: Decoder) -> None:
        super().__init__()
        self.language_model = language_model


class Llava(Graph):
    """The graph of the text family, under transformers' names."""

    layer_path = "model.language_model.layers"

    def __init__(self, config: LlavaConfig, dtype: str = "float32") -> None:
        super().__init__(config, dtype)
        self.block = config.block
        text = GRAPHS[config.block.family](config.block, dtype)
        self.model = Model(text.model)
        self.lm_head = text.lm_head

    def text_model(self, raw: Mapping[str, Any]) -> TextModel:
        kind, words = _text_of(Fields(raw, "llava"))
        config = TEXTS[kind][1] | words | {"model_type": kind}
        return TextModel(GRAPHS[self.block.family](self.block, self.dtype), config, "model.language_model.", "model.")

    def prologue(self, step: Step) -> tuple[Tensor, ...]:
        decoder = self.model.language_model
        return (decoder.embed_tokens(step.tokens), *decoder.ropes(step))

    def final(self, x_Nm: Tensor) -> Tensor:
        return self.model.language_model.norm(x_Nm)

    def epilogue(self, x_Rm: Tensor) -> Tensor:
        return self.lm_head(self.final(x_Rm))
