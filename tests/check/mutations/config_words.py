"""Keys of config.json that contradict each other, have no effect, or belong to another model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.check.mutations.mutation import Mutation, Trial

SEEN = "a trial of bringup against transformers 5.23"
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip


def _words(**words: Any) -> Callable[[Trial], None]:
    def spoil(trial: Trial) -> None:
        trial.config.update(words)

    return spoil


def _rope(**words: Any) -> Callable[[Trial], None]:
    def spoil(trial: Trial) -> None:
        trial.config["rope_parameters"] |= words

    return spoil


def _named(model: str, **words: Any) -> Callable[[Trial], None]:
    def spoil(trial: Trial) -> None:
        trial.model = model
        trial.config.update(words)

    return spoil


def two_origins(trial: Trial) -> None:
    trial.config["rope_parameters"] = LLAMA3
    trial.config["original_max_position_embeddings"] = 64


def _case(
    key: str,
    title: str,
    spoil: Callable[[Trial], None],
    code: str,
    names: str,
    *,
    base: str = "llama",
    pain: int = 12,
    reads: tuple[str, ...] = (),
) -> Mutation:
    return Mutation(
        key=key, title=title, pain=pain, seen=SEEN, base=base, spoil=spoil, code=code, names=names,
        warns=code == "BU151", reads=reads,
    )  # fmt: skip


CONFIG_WORDS = (
    _case("null-bias", "`attention_bias` is null", _words(attention_bias=None), "BU121", "attention_bias"),
    _case("null-epsilon", "`rms_norm_eps` is null", _words(rms_norm_eps=None), "BU121", "rms_norm_eps"),
    _case(
        "null-tie", "`tie_word_embeddings` is null", _words(tie_word_embeddings=None), "BU121", "tie_word_embeddings",
        pain=5,
    ),
    _case("null-theta", "`rope_theta` is null in the RoPE settings", _rope(rope_theta=None), "BU121", "rope_theta"),
    _case("null-rope-type", "`rope_type` is null", _rope(rope_type=None), "BU121", "rope_type"),
    _case(
        "null-scale", "`scale_attn_weights` is null", _words(scale_attn_weights=None), "BU121", "scale_attn_weights",
        base="gpt2",
    ),
    _case(
        "null-key-heads", "`num_key_value_heads` is null where only Llama accepts that",
        _words(num_key_value_heads=None),
        "BU121", "num_key_value_heads", base="mistral", pain=11,
    ),
    _case(
        "null-group", "`n_group` is null", _words(n_group=None), "BU121", "n_group", base="deepseek_v3"
    ),
    _case(
        "two-thetas", "`rope_theta` inside and outside the RoPE settings differ", _words(rope_theta=500000.0), "BU151",
        "rope_theta", reads=("rope_scaling",),
    ),
    _case(
        "two-ropes", "`rope_scaling` contradicts `rope_parameters`",
        _words(rope_scaling={"rope_type": "linear", "factor": 2.0}), "BU151", "rope_parameters", pain=14,
    ),
    _case("two-rope-types", "`type` contradicts `rope_type`", _rope(type="linear"), "BU151", "type", pain=14),
    _case(
        "two-origins", "the trained context is stated twice and differs", two_origins, "BU151",
        "original_max_position_embeddings",
    ),
    _case(
        "two-contexts", "`max_sequence_length` is beyond `max_position_embeddings`", _words(max_sequence_length=128),
        "BU151", "max_sequence_length", reads=("rope_scaling",),
    ),
    _case(
        "other-architecture", "A Llama checkpoint is checked as GPT-2", _named("gpt2"), "BU152", "LlamaForCausalLM",
        pain=14,
    ),
    _case(
        "gemma-as-llama", "A Gemma checkpoint is checked as Llama",
        _named("llama", architectures=["GemmaForCausalLM"], model_type="gemma"), "BU152", "GemmaForCausalLM", pain=14,
    ),
    _case(
        "other-model-type", "`model_type` contradicts `architectures`", _words(model_type="helium"), "BU152", "helium",
        pain=14,
    ),
    _case(
        "mixtral-type", "`model_type` is Mixtral's, `architectures` Mistral's", _words(model_type="mixtral"), "BU152",
        "mixtral", base="mistral", pain=14,
    ),
    _case(
        "every-other-layer", "`moe_layer_freq`, which transformers does not read, is 2", _words(moe_layer_freq=2),
        "BU151", "moe_layer_freq", base="deepseek_v3", pain=7,
    ),
    _case(
        "config-rope-in-pairs", "The config states that RoPE rotates pairs", _words(rope_interleaved=True), "BU122",
        "rope_interleaved", pain=2,
    ),
    _case("special-rows", "The embedding has further rows by `n_special`", _words(n_special=3), "BU122", "n_special",
          base="gpt2"),
    _case(
        "uneven-slices", "`slow_but_exact` cuts the hidden size unevenly",
        _words(slow_but_exact=True, pretraining_tp=5), "BU121", "pretraining_tp", base="bloom",
    ),
)  # fmt: skip
