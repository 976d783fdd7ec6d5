"""Matrices in another layout than the rule or the graph declares. Most of them have the right shape."""

from __future__ import annotations

import numpy as np

from tests.check.mutations.mutation import Mutation, Trial

CONV1D = 'S("h.{L}.{m}.{p}")'
PROJECTION = "attn.c_attn|attn.c_proj|mlp.c_fc|mlp.c_proj"
ATTENTION = 'llama["model.layers.{L}.self_attn.{x:q|k|v|o}_proj.{p:weight|bias}"]'


def _each(trial: Trial, inner: str, new) -> None:
    """Changes a matrix in every layer: what a conversion script with the same mistake writes."""
    for layer in range(trial.draft.depth):
        trial.change(trial.draft.name(inner, layer), new)


def _own_rule(trial: Trial, matrix: str, rule: str) -> None:
    """GPT-2's adapter with a rule of its own for one matrix."""
    trial.edit_adapter(f"{{m:{PROJECTION}}}.{{p:weight|bias}}", f"{{m:{PROJECTION}}}.{{p:bias}}")
    others = "|".join(name for name in PROJECTION.split("|") if name != matrix)
    trial.edit_adapter(
        "    head, embedding",
        f'    gpt2["transformer.h.{{L}}.{{m:{others}}}.weight"] = S("h.{{L}}.{{m}}.weight", "in out")\n'
        f'    gpt2["transformer.h.{{L}}.{matrix}.weight"] = {rule}\n'
        "    head, embedding",
    )


def forgotten_transpose(trial: Trial) -> None:
    _own_rule(trial, "attn.c_proj", 'S("h.{L}.attn.c_proj.weight", "out in")')


def double_transpose(trial: Trial) -> None:
    _own_rule(trial, "attn.c_proj", 'S("h.{L}.attn.c_proj.weight", "out in").mv("out in -> in out")')


def transposed_square(trial: Trial) -> None:
    _each(trial, "attn.c_proj.weight", np.transpose)


def one_transposed(trial: Trial) -> None:
    trial.change("model.layers.1.mlp.up_proj.weight", np.transpose)
    trial.shards = 3


def head_transposed(trial: Trial) -> None:
    trial.change("lm_head.weight", np.transpose)


def qkv_order(trial: Trial) -> None:
    parts = 'S("h.{L}.attn.c_attn.weight", "in out").split("out", 32, 32, 32)'
    trial.edit_adapter("import S\n", "import S, cat\n")
    _own_rule(trial, "attn.c_attn", f'cat(*({parts}[k] for k in (1, 0, 2)), axis="out")')


def qkv_order_in_tensors(trial: Trial) -> None:
    def new(array: np.ndarray) -> np.ndarray:
        q, k, v = np.split(array, 3, axis=1)
        return np.concatenate([k, q, v], axis=1)

    _each(trial, "attn.c_attn.weight", new)


def _own_attention_rule(trial: Trial, names: str, rule: str) -> None:
    others = "|".join(x for x in "qkvo" if x not in names)
    trial.edit_adapter(ATTENTION, ATTENTION.replace("q|k|v|o", others))
    ours = "|".join(names)
    trial.edit_adapter(
        "    head, embedding",
        f'    llama["model.layers.{{L}}.self_attn.{{x:{ours}}}_proj.weight"] = {rule}\n    head, embedding',
    )


def rope_permuted(trial: Trial) -> None:
    """As if the file had Meta's order of channels, in pairs; transformers' has the halves of the pairs apart."""
    source = 'S("layers.{L}.self_attn.{x}_proj.weight", "out in")'
    _own_attention_rule(trial, "qk", f'{source}.mv("(n p two) m -> (n two p) m", p=4, two=2)')


def rope_permuted_in_tensors(trial: Trial) -> None:
    _permute(trial, "qk")


def _permute(trial: Trial, which: str) -> None:
    def new(array: np.ndarray) -> np.ndarray:
        out, m = array.shape
        return array.reshape(-1, 4, 2, m).swapaxes(1, 2).reshape(out, m)

    for x in which:
        _each(trial, f"self_attn.{x}_proj.weight", new)


def rope_by_function(trial: Trial) -> None:
    """The same by the function that conversion scripts carry around, which hides what it does to the axes."""
    trial.edit_adapter("import S\n", "import S\nfrom bringup.adapters.algebra.values import fn\n")
    trial.edit_adapter(
        "def adapter(",
        "def permute(w):\n    return w.reshape(-1, 4, 2, w.shape[1]).swapaxes(1, 2).reshape(w.shape)\n\n\ndef adapter(",
    )
    source = 'S("layers.{L}.self_attn.{x}_proj.weight", "out in")'
    sizes = "out=32, **{'in': 32}"
    _own_attention_rule(trial, "q", f'fn(permute, {source}, axes="out in", dtype="float32", {sizes})')


def query_permuted(trial: Trial) -> None:
    _permute(trial, "q")


def gqa_order(trial: Trial) -> None:
    """Query heads by their place within a group first, by group second."""
    source = 'S("layers.{L}.self_attn.{x}_proj.weight", "out in")'
    _own_attention_rule(trial, "q", f'{source}.mv("(r g d) m -> (g r d) m", r=2, g=2)')


def gqa_order_in_tensors(trial: Trial) -> None:
    def new(array: np.ndarray) -> np.ndarray:
        out, m = array.shape
        return array.reshape(2, 2, 8, m).swapaxes(0, 1).reshape(out, m)

    _each(trial, "self_attn.q_proj.weight", new)


def gate_and_up(trial: Trial) -> None:
    rules = "".join(
        f'    llama["model.layers.{{L}}.mlp.{ours}_proj.weight"] = S("layers.{{L}}.mlp.{theirs}_proj.weight")\n'
        for ours, theirs in (("gate", "up"), ("up", "gate"))
    )
    trial.edit_adapter('mlp.{x:gate|up|down}_proj.{p:weight|bias}"]', 'mlp.{x:down}_proj.{p:weight|bias}"]')
    trial.edit_adapter("    head, embedding", f"{rules}    head, embedding")


def gate_and_up_in_tensors(trial: Trial) -> None:
    for layer in range(trial.draft.depth):
        gate, up = (f"model.layers.{layer}.mlp.{x}_proj.weight" for x in ("gate", "up"))
        trial.tensors[gate], trial.tensors[up] = trial.tensors[up], trial.tensors[gate]


LAYOUTS = (
    Mutation(
        key="forgotten-transpose",
        title="A rule forgets the transpose of a square matrix",
        pain=2,
        seen="transformers#47031, tinygrad#18103",
        base="gpt2",
        spoil=forgotten_transpose,
        convert=transposed_square,
        code="BU107",
        names="transformer.h.{0..2}.attn.c_proj.weight",
    ),
    Mutation(
        key="double-transpose",
        title="A rule transposes a square matrix twice, explicitly",
        pain=2,
        seen="vllm#47874",
        base="gpt2",
        spoil=double_transpose,
        convert=transposed_square,
        code="BU701",
        names="transformer.h.0.attn.c_proj",
        phase="verify",
    ),
    Mutation(
        key="one-transposed",
        title="A rectangular matrix is transposed in one layer",
        pain=2,
        seen="unsloth-zoo#849",
        base="llama",
        spoil=one_transposed,
        code="BU102",
        names="model.layers.1.mlp.up_proj.weight",
    ),
    Mutation(
        key="head-transposed",
        title="The head is transposed",
        pain=2,
        seen="vllm#44113",
        base="llama",
        spoil=head_transposed,
        code="BU102",
        names="lm_head.weight",
    ),
    Mutation(
        key="qkv-order",
        title="A rule reads q, k, v in the order k, q, v",
        pain=2,
        seen="Megatron-Bridge#1818",
        base="gpt2",
        spoil=qkv_order,
        convert=qkv_order_in_tensors,
        code="BU701",
        names="transformer.h.0.attn.c_attn",
        phase="verify",
    ),
    Mutation(
        key="rope-permuted",
        title="A rule permutes q and k for RoPE on adjacent pairs",
        pain=2,
        seen="llama.cpp#2376, transformers#31788",
        base="llama",
        spoil=rope_permuted,
        convert=rope_permuted_in_tensors,
        code="BU106",
        names="model.layers.{0..2}.self_attn.q_proj.weight, model.layers.{0..2}.self_attn.k_proj.weight",
    ),
    Mutation(
        key="rope-by-function",
        title="A rule permutes q with a numpy function",
        pain=2,
        seen="llama.cpp#22611, llama2.c#286",
        base="llama",
        spoil=rope_by_function,
        convert=query_permuted,
        code="BU701",
        names="model.layers.0.self_attn.q_proj",
        phase="verify",
    ),
    Mutation(
        key="gqa-order",
        title="A rule groups query heads in the wrong order",
        pain=2,
        seen="NeMo-RL#2802, tt-metal#38321",
        base="llama",
        spoil=gqa_order,
        convert=gqa_order_in_tensors,
        code="BU106",
        names="model.layers.{0..2}.self_attn.q_proj.weight",
    ),
    Mutation(
        key="gate-and-up",
        title="A rule exchanges gate and up",
        pain=2,
        seen="sglang#24703",
        base="llama",
        spoil=gate_and_up,
        convert=gate_and_up_in_tensors,
        code="BU701",
        names="model.layers.0.mlp.gate_proj",
        phase="verify",
    ),
)
