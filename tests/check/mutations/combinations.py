"""One wrong size in a config that affects many tensors: one finding, which names the key."""

from __future__ import annotations

from collections.abc import Callable

from tests.check.mutations.mutation import Mutation, Trial


def _word(key: str, value: int) -> Callable[[Trial], None]:
    def spoil(trial: Trial) -> None:
        trial.config[key] = value

    return spoil


def _case(base: str, key: str, value: int, title: str, seen: str) -> Mutation:
    return Mutation(
        key=f"{base}-{key.replace('_', '-')}-{value}",
        title=title,
        pain=12,
        seen=seen,
        base=base,
        spoil=_word(key, value),
        code="BU102",
        names=key,
    )


COMBINATIONS = (
    _case("llama", "hidden_size", 64, "The config's `hidden_size` is that of another model", "DeepSpec#44"),
    _case("gpt2", "n_embd", 64, "The config's `n_embd`, which four sizes come from, is another", "VLM2Vec#6"),
    _case("mixtral", "hidden_size", 64, "`hidden_size` is another, and with it the heads' size", "VLM2Vec#6"),
    _case("deepseek_v3", "hidden_size", 64, "`hidden_size` of a latent attention is another", "DeepSpec#44"),
    _case("llama", "num_attention_heads", 8, "The config has twice the query heads", "Fast-LLM#102"),
    _case("llama", "num_key_value_heads", 1, "The config has one key head", "llama#427"),
    _case("mixtral", "vocab_size", 100, "The config has another vocabulary", "pythia#41"),
    _case("gpt_oss", "hidden_size", 128, "`hidden_size` of a mixture with biases is another", "pythia#41"),
)
