"""The texts of a draft other than graph and adapter: the family, its dialect in GGUF, its test."""

from __future__ import annotations

from bringup.compile.draft.facts.facts import Facts
from bringup.compile.draft.facts.questions import comment
from bringup.compile.draft.facts.quoted import quoted, tuple_of
from bringup.compile.draft.facts.readings import DEFAULTS
from bringup.compile.draft.facts.words import EXPERT_MLP

# llama.cpp's names by role; {b} stands for `blk.{L}`. gguf-py, `constants.py`, TENSOR_NAMES.
IN_GGUF = {
    "embed": "token_embd", "norm": "output_norm", "norm_1": "{b}.attn_norm", "norm_2": "{b}.ffn_norm",
    "q": "{b}.attn_q", "k": "{b}.attn_k", "v": "{b}.attn_v", "o": "{b}.attn_output",
    "q_norm": "{b}.attn_q_norm", "k_norm": "{b}.attn_k_norm",
    "gate": "{b}.ffn_gate", "up": "{b}.ffn_up", "down": "{b}.ffn_down", "router": "{b}.ffn_gate_inp",
    "router_bias": "{b}.exp_probs_b",
}  # fmt: skip
AROUND = {"norm_2": "{b}.post_attention_norm", "norm_3": "{b}.ffn_norm", "norm_4": "{b}.post_ffw_norm"}
EPSILON = {True: "attention.layer_norm_rms_epsilon", False: "attention.layer_norm_epsilon"}


def family_text(facts: Facts) -> str:
    """The file that a command names: `bringup check DIR/NAME.py --checkpoint SRC`."""
    name, title = facts.name, facts.title
    served = f", architectures={tuple_of([facts.architecture])}" if facts.architecture else ""
    return (
        f'"""{title}: `bringup check {name}.py --checkpoint SRC`."""\n\nfrom __future__ import annotations\n\n'
        f"from bringup.graphs import Family\n\nfrom .{name}_adapter import adapter\n"
        f"from .{name}_dialect import dialect\n"
        f"from .{name}_graph import {title}, {title}Config\n\n"
        f"family = Family(\n    name={quoted(name)}, graph={title}, config={title}Config, adapter=adapter{served},\n"
        "    dialect=dialect,\n)\n"
    )


def dialect_text(facts: Facts, parameters: dict[str, tuple[str, bool]]) -> str:
    """Rules by llama.cpp's conventions, which no file has proved. `parameters` by pattern: their role, and whether
    they have a bias."""
    name, title = facts.name, facts.title
    question = facts.ask(
        "GGUF: no file of the family was read; the dialect follows llama.cpp's usual conventions",
        "rows of q and k as in transformers, norms as stored",
        'rows in rope pairs: .mv("(h pair two) m -> (h d:(two pair)) m")',
        "norms stored as 1 + w: shift(S(…), -1)",
    )
    names = IN_GGUF | (AROUND if facts.norms in ("around", "after") else {})
    lines = ""
    for pattern, (role, bias) in parameters.items():
        stored = names[role].replace("{b}", "blk.{L}")
        if pattern in EXPERT_MLP.values():
            axes = "e m f" if role == "down" else "e f m"
            lines += f"    gguf[{quoted(pattern)}] = S({quoted(f'{stored}_exps.weight')}, {quoted(axes)})\n"
        elif bias:
            both = pattern.replace("weight", "{p:weight|bias}")
            lines += f"    gguf[{quoted(both)}] = S({quoted(f'{stored}.{{p}}')})\n"
        else:
            last = "bias" if role == "router_bias" else "weight"
            lines += f"    gguf[{quoted(pattern)}] = S({quoted(f'{stored}.{last}')})\n"
    eps, rms = facts.keys.get("eps", "rms_norm_eps"), "RMS" in facts.norm
    sizes = {"hidden_size": "embedding_length", "intermediate_size": "feed_forward_length"}
    sizes |= {"num_hidden_layers": "block_count", "num_attention_heads": "attention.head_count"}
    sizes |= {"num_key_value_heads": "attention.head_count_kv"}
    own = {word: facts.keys[key] for key, word in sizes.items() if facts.keys.get(key, key) != key}
    own |= {EPSILON[rms]: eps} if (EPSILON[rms], eps) != (EPSILON[True], "rms_norm_eps") else {}
    words = "".join(f", {quoted(word)}: {quoted(key)}" for word, key in own.items())
    stated = facts.raw.get("model_type")
    model_type = stated if isinstance(stated, str) else name
    activation = facts.keys.get("act", "")
    fixed = {"model_type": model_type}
    fixed |= {activation: facts.raw[activation]} if isinstance(facts.raw.get(activation), str) else {}
    return (
        f'"""{title} in GGUF."""\n\nfrom __future__ import annotations\n\n'
        "from bringup.adapters import DECODER, Adapter, Dialect, S, tied\n\n"
        f"from .{name}_graph import {title}Config\n\n\n"
        f"def table(config: {title}Config) -> Adapter:\n"
        f"    gguf = Adapter({quoted(f'{name} in GGUF')}, defaults={quoted(DEFAULTS)})\n"
        f"{comment(question, '    ')}{lines}"
        '    gguf["lm_head.weight"] = tied(\n        S("output.weight"), S("token_embd.weight", "vocab m"), '
        "when=config.tied_head\n    )\n"
        "    return gguf\n\n\ndialect = Dialect(\n"
        f"    names={tuple_of([model_type.replace('_', '')])},\n"
        f"    architecture={quoted(facts.architecture)},\n    keys={{**DECODER{words}}},\n"
        f"    fixed={quoted(fixed)},\n    table=table,\n)\n"
    )


def test_text(facts: Facts, source: str) -> str:
    """The test file for pytest: names and shapes always, logits if transformers has the architecture."""
    return (
        f'"""{facts.title}: the checkpoint fits the graph, and logits are the reference\'s."""\n\n'
        "from __future__ import annotations\n\nimport os\nfrom pathlib import Path\n\n"
        "from bringup.testing import assert_fits, assert_same_logits\n\n"
        f"MODEL = Path(__file__).with_name({quoted(f'{facts.name}.py')})\n"
        f'CHECKPOINT = os.environ.get("CHECKPOINT", {quoted(source)})\n'
        'AGAINST = os.environ.get("AGAINST", "transformers")  # or a file of saved activations\n\n\n'
        + "def test_the_checkpoint_fits() -> None:\n    assert_fits(MODEL, CHECKPOINT)\n\n\n"
        "def test_logits() -> None:\n    assert_same_logits(MODEL, CHECKPOINT, against=AGAINST)\n"
    )
