"""The eleven faults: functions that modify a draft and return the expected result of a check."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tests.check.drafts import FUSED, GPT2, LLAMA, MIXTRAL, Draft, Family

MISTAKE = "# the mistake"  # marks the rule at fault in the adapter files beside this one


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a check says of a fault: the code, the parameters as grouped, the tensor named, and words of the message."""

    code: str
    parameter: str
    mentions: tuple[str, ...] = ()
    rule: Path | None = None  # the file of the rule that is named


@dataclass(frozen=True)
class Fault:
    """`spoil` changes a draft and gives the answer that is due. `adapter` is the file that is checked with, if any."""

    key: str
    title: str
    spoil: Callable[[Draft], Answer]
    families: tuple[Family, ...] = (GPT2, LLAMA, MIXTRAL, FUSED)
    adapter: Callable[[Family], Path | None] = field(default=lambda family: None)


def missing(draft: Draft) -> Answer:
    family = draft.family
    name = draft.name(family.vector, 1)
    del draft.tensors[name]
    return Answer(code="BU101", parameter=draft.parameter(family.vector, "1"), mentions=(name,), rule=family.rules)


def extra(draft: Draft) -> Answer:
    name = draft.name("adapter_gate", 1)
    draft.tensors[name] = np.ones((3, 5), np.float32)
    return Answer(code="BU105", parameter="", mentions=(name, "[3, 5]", "drop("))


def renamed(draft: Draft) -> Answer:
    family = draft.family
    old, new = draft.name(family.other, 1), draft.name(family.typo, 1)
    draft.replace(old, draft.tensors[old], new)
    mentions = (old, f"did you mean `{new}`?")
    return Answer(code="BU101", parameter=draft.parameter(family.other, "1"), mentions=mentions, rule=family.rules)


def transposed(draft: Draft) -> Answer:
    """In every layer, as a conversion script would do it."""
    family = draft.family
    for layer in range(draft.depth):
        name = draft.name(family.matrix, layer)
        draft.replace(name, draft.tensors[name].T)
    return Answer(
        code="BU102",
        parameter=draft.parameter(family.matrix, draft.every()),
        mentions=("the other way round",),
        rule=family.rules,
    )


def square(draft: Draft) -> Answer:
    """The adapter is at fault; the checkpoint is as it was."""
    family = draft.family
    return Answer(
        code="BU107",
        parameter=draft.parameter(family.square, draft.every()),
        mentions=("is square",),
        rule=family.forgetful,
    )


def integer(draft: Draft) -> Answer:
    family = draft.family
    name = draft.name(family.number, 0)
    draft.replace(name, draft.tensors[name].astype(np.int8))
    return Answer(
        code="BU108",
        parameter=draft.parameter(family.number, "0"),
        mentions=("float32", "int8"),
        rule=family.rules,
    )


def deeper(draft: Draft) -> Answer:
    family, depth = draft.family, draft.depth
    draft.config[family.layers_key] = depth + 1
    stated = f"`{family.layers_key}` of config.json is {depth + 1}"
    ends = f"{stated}, and the checkpoint ends at {draft.name(family.layers)}.{depth - 1}: set it to {depth}, or "
    return Answer(code="BU101", parameter=f"{family.root}{family.layers}.{depth}", mentions=(ends,), rule=family.rules)


def rope(draft: Draft) -> Answer:
    draft.config["rope_parameters"] = {"rope_type": "spiral", "rope_theta": 10000.0, "factor": 2.0}
    return Answer(code="BU122", parameter="rope_type", mentions=("`spiral`", "graphs/config/rope.py"))


def padded(draft: Draft) -> Answer:
    """Rows up to the next multiple of 64, in every table of the vocabulary that the checkpoint has."""
    family, old = draft.family, draft.config["vocab_size"]
    new = old + 64 - old % 64
    tables = [name for name in (draft.name(family.embedding), "lm_head.weight") if name in draft.tensors]
    for name in tables:
        draft.replace(name, _resized(draft.tensors[name], new))
    return Answer(
        code="BU102",
        parameter=f"{draft.parameter(family.embedding)}, lm_head.weight",
        mentions=("vocabulary is padded", f"vocab_size to {new}"),
        rule=family.rules,
    )


def headless(draft: Draft) -> Answer:
    draft.config["tie_word_embeddings"] = False
    draft.tensors.pop("lm_head.weight", None)
    return Answer(
        code="BU109",
        parameter="lm_head.weight",
        mentions=("does not tie it", "tie_word_embeddings"),
        rule=draft.family.rules,
    )


def hole(draft: Draft) -> Answer:
    """One expert but the last is lost in every layer."""
    for layer in range(draft.depth):
        for matrix in ("w1", "w2", "w3"):
            del draft.tensors[draft.name(f"block_sparse_moe.experts.1.{matrix}.weight", layer)]
    mentions = ("gap in the numbering", draft.name("block_sparse_moe.experts.{0,2,3} are present", 0))
    parameter = draft.parameter("mlp.experts", draft.every())
    return Answer(code="BU101", parameter=parameter, mentions=mentions, rule=draft.family.rules)


FAULTS = (
    Fault("missing", "A tensor is missing", missing),
    Fault("extra", "There is one tensor too many", extra),
    Fault("renamed", "A tensor is renamed", renamed),
    Fault("transposed", "A rectangular matrix is transposed", transposed),
    Fault(
        "square",
        "A rule forgets the transpose of a square matrix",
        square,
        (GPT2, LLAMA),
        adapter=lambda family: family.forgetful,
    ),
    Fault("integer", "An integer stands where a float is declared", integer),
    Fault("deeper", "The config has one layer more than the weights", deeper),
    Fault("rope", "The rope type is unknown", rope, (LLAMA, MIXTRAL, FUSED)),
    Fault("padded", "The vocabulary is padded", padded),
    Fault("headless", "The config unties the head, and the head is missing", headless),
    Fault("hole", "The numbering of experts has a hole", hole, (MIXTRAL, FUSED)),
)


def _resized(table: np.ndarray, rows: int) -> np.ndarray:
    if not any(table.strides):  # no memory behind it
        return np.broadcast_to(table[0, 0], (rows, table.shape[1]))
    return np.concatenate([table, np.zeros((rows - len(table), table.shape[1]), table.dtype)])
