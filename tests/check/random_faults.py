"""Random faults of every kind, by seed. Each modifies tensors that no other fault modifies, and states its report."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tests.check.draw import Draw

FAMILIES = ("gpt2", "llama", "mixtral", "deepseek_v3", "gpt_oss")
INDEX = "model.safetensors.index.json"
SIZES = {"gpt2": ("vocab_size", "n_embd"), "others": ("vocab_size", "intermediate_size", "hidden_size")}


def missing(draw: Draw) -> bool:
    name = draw.tensor()
    if name is None:
        return False
    del draw.trial.tensors[name]
    draw.note("missing", name, "BU101")
    return True


def _respell(draw: Draw, kind: str, change: Callable[[str], str], says: str = "") -> bool:
    name = draw.tensor()
    if name is None:
        return False
    parts = name.split(".")
    at = max(k for k, part in enumerate(parts[:-1]) if not part.isdigit())
    parts[at] = change(parts[at])
    new = ".".join(parts)
    draw.used.add(new)
    draw.trial.draft.replace(name, draw.trial.tensors[name], new)
    draw.note(kind, says or new, "BU101")
    return True


def renamed(draw: Draw) -> bool:
    return _respell(draw, "renamed", lambda word: word + "s")


def swapped(draw: Draw) -> bool:
    return _respell(draw, "swapped", lambda word: word[1] + word[0] + word[2:] if word[0] != word[1] else word + "x")


def look_alike(draw: Draw) -> bool:
    letter = draw.rng.choice("\u0430\u03bf\uff50\u0455")
    return _respell(draw, "look-alike", lambda word: letter + word[1:], f"U+{ord(letter):04X}")


def extra(draw: Draw) -> bool:
    name = f"{draw.trial.draft.family.root}extra_{len(draw.trial.tensors)}_gate"
    draw.used.add(name)
    draw.trial.tensors[name] = np.ones((3, 5), np.float32)
    draw.note("extra", name, "BU105")
    return True


def transposed(draw: Draw) -> bool:
    name = draw.tensor(matrix=True)
    if name is None:
        return False
    draw.trial.change(name, lambda array: array.T)
    draw.note("transposed", name, "BU102")
    return True


def cut(draw: Draw) -> bool:
    name = draw.tensor(matrix=False)
    if name is None:
        return False
    rows = draw.rng.randint(1, 3)
    draw.trial.change(name, lambda array: array[:-rows])
    draw.note("cut", name, "BU102")
    return True


def integer(draw: Draw) -> bool:
    name = draw.tensor()
    if name is None:
        return False
    kind = draw.rng.choice([np.int8, np.int32, np.int64])
    draw.trial.change(name, lambda array: array.astype(kind))
    draw.note("integer", name, "BU108")
    return True


def unknown_key(draw: Draw) -> bool:
    key = f"attn_cap_{len(draw.expected)}"
    draw.trial.config[key] = 30.0
    draw.note("unknown key", key, "BU120")
    return True


def mistyped(draw: Draw) -> bool:
    key = draw.key("rms_norm_eps", "layer_norm_epsilon", "tie_word_embeddings")
    if key is None:
        return False
    draw.trial.config[key] = json.dumps(draw.trial.config[key])
    draw.note("mistyped", key, "BU121")
    return True


def activation(draw: Draw) -> bool:
    key = draw.key("hidden_act", "activation_function")
    if key is None:
        return False
    draw.trial.config[key] = "swoosh"
    draw.note("activation", key, "BU122")
    return True


def rope(draw: Draw) -> bool:
    key = draw.key("rope_parameters")
    if key is None:
        return False
    draw.trial.config[key] = {"rope_type": "spiral", "rope_theta": 10000.0}
    draw.note("rope", "rope_type", "BU122")
    return True


def routing(draw: Draw) -> bool:
    key = draw.key("topk_method", "scoring_func", "swiglu_limit")
    if key is None:
        return False
    draw.trial.config[key] = "other"
    draw.note("routing", key, "BU121", "BU122")
    return True


def wrong_size(draw: Draw) -> bool:
    key = draw.key(*SIZES.get(draw.family, SIZES["others"]))
    if key is None:
        return False
    draw.trial.config[key] *= 2
    draw.note("wrong size", key, "BU102")
    return True


def no_size(draw: Draw) -> bool:
    key = draw.key(*SIZES.get(draw.family, SIZES["others"]), "num_attention_heads", "n_head")
    if key is None:
        return False
    draw.trial.config[key] = draw.rng.choice([None, 0, "many"])
    draw.note("no size", key, "BU121")
    return True


def more_layers(draw: Draw) -> bool:
    family = draw.trial.draft.family
    if draw.key(family.layers_key) is None:
        return False
    last = draw.trial.draft.depth
    draw.trial.config[family.layers_key] = last + draw.rng.randint(1, 3)
    draw.note("more layers", f"{family.layers}.{last - 1}: set it to {last}, or fetch", "BU101")
    return True


def _index(draw: Draw, change: Callable[[Path, dict], None]) -> None:
    def rewrite(folder: Path) -> None:
        index = json.loads((folder / INDEX).read_text("utf-8"))
        change(folder, index["weight_map"])
        (folder / INDEX).write_text(json.dumps(index), "utf-8")

    draw.trial.on_disk(rewrite)


def elsewhere(draw: Draw) -> bool:
    name = draw.tensor()
    if name is None or not draw.used.isdisjoint({"elsewhere", "file"}):
        return False
    draw.used.add("elsewhere")

    def change(folder: Path, owners: dict) -> None:
        owners[name] = next(shard for shard in sorted(set(owners.values())) if shard != owners[name])

    _index(draw, change)
    draw.note("index: elsewhere", name, "BU216")
    return True


def ghost(draw: Draw) -> bool:
    if not draw.used.isdisjoint({"ghost", "file"}):
        return False
    draw.used.add("ghost")
    _index(draw, lambda folder, owners: owners.update(ghost=next(iter(owners.values()))))
    draw.note("index: ghost", "`ghost`", "BU216")
    return True


def forgotten(draw: Draw) -> bool:
    name = draw.tensor()
    if name is None or not draw.used.isdisjoint({"forgotten", "file"}):
        return False
    draw.used.add("forgotten")
    _index(draw, lambda folder, owners: owners.pop(name))
    draw.note("index: forgotten", name, "BU216")
    return True


def two_sets(draw: Draw) -> bool:
    if "two sets" in draw.used:
        return False
    draw.used.add("two sets")

    def change(folder: Path) -> None:
        (folder / "model.safetensors").write_bytes((folder / "model-00001-of-00003.safetensors").read_bytes())

    draw.trial.on_disk(change)
    draw.note("two sets", "two sets of weights", "BU228")
    return True


def adapter(draw: Draw) -> bool:
    if "adapter" in draw.used:
        return False
    draw.used.add("adapter")

    def change(folder: Path) -> None:
        (folder / "adapter_config.json").write_text("{}", "utf-8")
        (folder / "adapter_model.safetensors").write_bytes((folder / "model-00001-of-00003.safetensors").read_bytes())

    draw.trial.on_disk(change)
    draw.note("adapter", "adapter_model.safetensors", "BU132")
    return True


def bad_index(draw: Draw) -> bool:
    """What the index says of tensors is unknown then."""
    if not draw.used.isdisjoint({"elsewhere", "ghost", "forgotten", "two sets", "file"}):
        return False
    draw.used |= {"file", "two sets"}
    draw.trial.on_disk(lambda folder: (folder / INDEX).write_text("{", "utf-8"))
    draw.note("bad index", INDEX, "BU214")
    return True


KINDS: tuple[Callable[[Draw], bool], ...] = (
    missing, renamed, swapped, look_alike, extra, transposed, cut, integer,
    unknown_key, mistyped, activation, rope, routing, wrong_size, no_size, more_layers,
    elsewhere, ghost, forgotten, two_sets, adapter, bad_index,
)  # fmt: skip


# Twice in one checkpoint, these may well be one mistake, and are one finding then.
ONCE = (look_alike, transposed, cut, integer)


def draw_faults(seed: int) -> Draw:
    """A family by turns, and 2 to 6 faults of kinds drawn at random; those of files last, so that they see the rest."""
    rng = random.Random(seed)
    draw = Draw(FAMILIES[seed % len(FAMILIES)], rng)
    count = rng.randint(2, 6)
    done: list[Callable[[Draw], bool]] = []
    while len(draw.expected) < count:
        kind = rng.choice(KINDS)
        if kind not in done or kind not in ONCE:
            done += [kind] if kind(draw) else []
    return draw
