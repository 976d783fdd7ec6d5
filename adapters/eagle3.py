"""EAGLE-3 heads as the EAGLE repository, SGLang, vLLM and the speculators library publish them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from bringup.adapters.algebra.expr import S
from bringup.adapters.algebra.values import fn
from bringup.adapters.planning.adapter import Adapter, either, tied
from bringup.adapters.planning.drops import drop_rope_tables
from bringup.diagnostics import fail
from bringup.graphs.eagle3 import Eagle3Config

if TYPE_CHECKING:
    import numpy as np

MAIN = "main."  # the prefix of the main model's tensors
ALSO = f"name the main model's checkpoint too: --also SRC:{MAIN}"
LAYER = {
    "{n:input_layernorm|hidden_norm|post_attention_layernorm}.weight": "{n}.weight",
    "self_attn.{x:q|k}_norm.weight": "self_attn.{x}_norm.weight",
    "self_attn.{x:q|k|v|o}_proj.{p:weight|bias}": "self_attn.{x}_proj.{p}",
    "mlp.{x:gate|up|down}_proj.{p:weight|bias}": "mlp.{x}_proj.{p}",
}


def adapter(config: Eagle3Config) -> Adapter:
    """The layer is `midlayer` in the EAGLE repository and SGLang, and `layers.0` in vLLM and speculators.

    Most heads have no embedding, and those for all tokens may have no `lm_head`: these are the main model's.
    """
    draft = Adapter("eagle3", defaults=("out in", "vocab m"), prefix="model.", infix="model")
    draft["model.{n:fc|norm|input_norm}.weight"] = S("{n}.weight")
    draft["model.fc_norm.{K}.weight"] = S("fc_norm.{K}.weight")
    draft["model.embed_tokens.weight"] = either(S("embed_tokens.weight"), S(f"{MAIN}embed_tokens.weight"), help=ALSO)
    for name, stored in LAYER.items():
        draft[f"model.layers.0.{name}"] = either(S(f"layers.0.{stored}"), S(f"midlayer.{stored}"))
    _add_head(draft, config)
    drop_rope_tables(draft, *(f"{m}rotary_emb" for m in ("layers.0.self_attn.", "midlayer.self_attn.", "")))
    draft.drop(MAIN + "{rest:**}", why="of the main model")
    return draft


def _add_head(draft: Adapter, config: Eagle3Config) -> None:
    head, vocab = S("lm_head.weight"), config.vocab_size
    if config.drafted < vocab:
        draft["lm_head.weight"] = head
        offsets = S("d2t", "v", v=config.drafted, plain=True)
        draft["rows"] = fn(
            rows_in(vocab), offsets, axes="token", dtype="int64", exact=True, inverse=offsets_of,
            accepts=({"int64"},), token=vocab,
        )  # fmt: skip
        draft.drop("t2d", why="a copy of the tokens of `d2t`", wrong=partial(other_tokens, vocab), reads="d2t")
        return
    draft.drop("{n:d2t|t2d}", why="the head has the logits of all tokens")
    if config.block.tied_head:
        embeddings = (S(f"{main}embed_tokens.weight", "vocab m") for main in ("", MAIN))
        draft["lm_head.weight"] = tied(head, *embeddings, when=True, help=ALSO)
    else:
        help = f"{ALSO}; if its head is tied to the embedding, set tie_word_embeddings to true"
        draft["lm_head.weight"] = either(head, S(f"{MAIN}lm_head.weight"), help=help)


def other_tokens(vocab: int, name: str, flags: np.ndarray, offsets: np.ndarray) -> str:
    """The difference between `t2d`, with a flag for each token, and the tokens of a valid `d2t`; "" without one."""
    import numpy as np

    if flags.shape != (vocab,):
        return f"its shape is {list(flags.shape)}, and the vocabulary has {vocab:,} tokens"
    found = np.zeros(vocab, bool)
    tokens = np.arange(len(offsets)) + offsets
    if tokens.min() < 0 or tokens.max() >= vocab:
        return ""
    found[tokens] = True
    (differ,) = np.nonzero(found != (flags != 0))
    if found.sum() < len(tokens) or not len(differ):
        return ""
    more = f", and {len(differ) - 1:,} more differ" if len(differ) > 1 else ""
    return f"only `{'d2t' if found[differ[0]] else 't2d'}` has token {differ[0]}{more}"


def offsets_of(rows: np.ndarray) -> tuple[np.ndarray, ...]:
    """`d2t`, from the row of each token."""
    import numpy as np

    (tokens,) = np.nonzero(rows >= 0)
    return (tokens[np.argsort(rows[tokens])] - np.arange(len(tokens)),)


def rows_in(vocab: int) -> Callable[[np.ndarray], np.ndarray]:
    """The function of `d2t` for a vocabulary of this size.

    Row i of the head is token i + d2t[i]. The function returns the row of each token, -1 for tokens without one. Raises
    BU115 for tokens outside of the vocabulary, and for a token with two rows: `d2t` may have tokens instead of offsets.
    """

    def rows(offsets: np.ndarray) -> np.ndarray:
        import numpy as np

        numbers = np.arange(len(offsets))
        tokens = numbers + offsets
        if tokens.min() < 0 or tokens.max() >= vocab:
            message = f"`d2t` names tokens {tokens.min()} to {tokens.max()}, and the vocabulary has {vocab:,}"
        elif len(np.unique(tokens)) < len(tokens):
            message = "`d2t` names a token twice"
        else:
            found = np.full(vocab, -1, np.int64)
            found[tokens] = numbers
            return found
        raise fail("BU115", message, help="row i of the head is token i + d2t[i]: is it another model's?")

    return rows
