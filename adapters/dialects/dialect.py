"""A dialect: the names and config keys of a family in llama.cpp's GGUF files, and the files that belong to the family.

The dialect of a built-in family is `dialect` in adapters/dialects/FAMILY.py; another family passes its own as
`Family(dialect=…)`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from bringup import plugins
from bringup.adapters.checkpoints.config_places import ConfigPlaces
from bringup.adapters.checkpoints.gguf_config import Hyperparameters
from bringup.adapters.checkpoints.gguf_rope import PREFIX, rope_scaling
from bringup.adapters.planning.adapter import Adapter
from bringup.diagnostics import BringupError, did_you_mean, fail
from bringup.graphs.family import Family
from bringup.graphs.registry import FAMILIES, families
from bringup.shown import short

# Keys in nearly every decoder's config.json for llama.cpp's hyperparameters.
DECODER: Mapping[str, str] = {
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "block_count": "num_hidden_layers",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "context_length": "max_position_embeddings",
    "rope.freq_base": "rope_theta",
}
SIZES = ("embedding_length", "feed_forward_length", "block_count", "attention.head_count", "context_length")
# Sizes of experts, which older files lack: the tensor of a layer that has each, its rank, and the dimension. llama.cpp
# derives the widths from `feed_forward_length` (`load_tensors`); the tensors have them in every file.
OF_EXPERTS: Mapping[str, tuple[str, int, int]] = {
    "expert_count": (".ffn_up_exps.weight", 3, 0),
    "expert_feed_forward_length": (".ffn_up_exps.weight", 3, 1),
    "expert_shared_feed_forward_length": (".ffn_up_shexp.weight", 2, 0),
}
# What no tensor has, so that the family's own default would be a guess: llama.cpp requires it (`load_hparams`).
OF_ROUTING = ("expert_used_count", "expert_shared_count")
EPSILONS = ("attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon")
# What llama.cpp reads for every architecture (`load_hparams`); files without a tokenizer have it.
EVERY: Mapping[str, str] = {"vocab_size": "vocab_size"}
# Keys that converters write in addition to a model's hyperparameters, and keys that do not affect the result.
SILENT = frozenset({"tensor_data_layout"})
HELP = "`bringup explain adding-a-model` describes how to write one, under `GGUF`"


def _no_more(hyper: Hyperparameters) -> dict[str, Any]:
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """One family in GGUF.

    `names` are its values of `general.architecture`; if other families have them too, `when` decides whether a file is
    this family's. `architecture` is the value of `architectures` in its config.json.

    `keys` are hyperparameters, without the architecture's name, and config.json's keys for them; None stands for one
    that `derived` reads, or that does not affect the result. 0 means none. A hyperparameter without a key is
    passed to the family's config under its own name (`llama.logit_scale`), which rejects it. `fixed` are keys of
    config.json without a GGUF key, with the values that llama.cpp computes with. `derived` returns the keys that follow
    from several hyperparameters or from tensors.

    `table` creates the adapter from the family's config: parameters from tensors by llama.cpp's names.
    """

    names: tuple[str, ...]
    architecture: str
    table: Callable[[Any], Adapter]
    keys: Mapping[str, str | None] = field(default_factory=lambda: DECODER)
    fixed: Mapping[str, Any] = field(default_factory=dict[str, Any])
    derived: Callable[[Hyperparameters], Mapping[str, Any]] = _no_more
    when: Callable[[Hyperparameters], bool] = lambda hyper: True

    def supports(self, hyper: Hyperparameters) -> bool:
        """Whether a file is of this family."""
        return hyper.architecture in self.names and self.when(hyper)

    def config(self, hyper: Hyperparameters) -> dict[str, Any]:
        """A file's metadata as keys of a config.json. Raises BU224 if a size is missing."""
        values = {**hyper.values, **self._sizes_of_experts(hyper)}
        self._check_needed(hyper, values)
        own = self._complete(values)
        config: dict[str, Any] = {
            "architectures": [self.architecture],
            **self.fixed,
            "vocab_size": hyper.vocab,
            "tie_word_embeddings": "output.weight" not in hyper.tensors,
        }
        names = {**EVERY, **self.keys}
        config |= {name: own[key] for key, name in names.items() if name and (own.get(key) or own.get(key) is False)}
        rope = "rope.freq_base" in self.keys
        if rope and (scaling := rope_scaling(hyper, own["rope.freq_base"])):
            config["rope_scaling"] = scaling
        known = names.keys() | SILENT | self._implied(own)
        rest = {key: value for key, value in own.items() if key not in known and not (rope and key.startswith(PREFIX))}
        rest = {f"{hyper.architecture}.{key}": value for key, value in rest.items()}
        return config | dict(self.derived(hyper)) | dict(hyper.tokens) | rest

    def places(self, hyper: Hyperparameters) -> ConfigPlaces:
        """The keys of `config` under their names in the file."""
        names = {name: f"{hyper.architecture}.{key}" for key, name in self.keys.items() if name}
        return ConfigPlaces(hyper.path.name, names=names, path=hyper.path)

    def _sizes_of_experts(self, hyper: Hyperparameters) -> dict[str, int]:
        """The sizes of experts that the metadata lacks, from the shapes of tensors."""
        found: dict[str, int] = {}
        for key, (suffix, rank, dimension) in OF_EXPERTS.items():
            if self.keys.get(key) and not hyper.values.get(key):
                shapes = (info.shape_in(rank) for name, info in hyper.tensors.items() if name.endswith(suffix))
                shape = next((shape for shape in shapes if len(shape) == rank), None)
                found |= {key: shape[dimension]} if shape else {}
        return found

    def _check_needed(self, hyper: Hyperparameters, own: Mapping[str, Any]) -> None:
        sizes = [key for key in SIZES if self.keys.get(key)] + [key for key in OF_EXPERTS if self.keys.get(key)]
        sizes += [key for key in OF_ROUTING if self.keys.get(key) and key not in own]
        wrong = [key for key in sizes if (type(own.get(key)) is not int or own[key] < 1)]
        wrong += [key for key in EPSILONS if self.keys.get(key) and type(own.get(key)) is not float]
        if wrong:
            keys = ", ".join(f"`{hyper.architecture}.{key}`" for key in wrong)
            raise fail(
                "BU224",
                f"`{hyper.path}` needs a number above 0 in its metadata under {keys}",
                help="convert the model again, or add the keys with gguf-set-metadata (package gguf)",
                file=str(hyper.path),
            )

    def _complete(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The values with llama.cpp's defaults for keys that are absent or 0 (`llama-model.cpp`, `load_hparams`)."""
        defaults: dict[str, Any] = {"rope.freq_base": 10000.0}
        if "attention.head_count" in self.keys and "embedding_length" in self.keys:  # integers, both required
            heads = values["attention.head_count"]
            defaults["attention.head_count_kv"] = heads
            defaults["attention.key_length"] = values["embedding_length"] // heads
        absent = {key: value for key, value in defaults.items() if key in self.keys and not values.get(key)}
        return {**values, **absent}

    def _implied(self, own: Mapping[str, Any]) -> set[str]:
        """Widths that only repeat a head's: those of all layers, and those of layers with a window."""
        known: set[str] = set()
        for layers in ("", "_swa"):
            width = own.get(f"attention.key_length{layers}")
            repeated = (f"rope.dimension_count{layers}", f"attention.value_length{layers}")
            known |= {key for key in repeated if width and own.get(key) == width}
        return known


def rotary_fraction(own: Mapping[str, Any], width: object) -> float:
    """The fraction of a head's `width` channels that RoPE rotates, from `rope.dimension_count`; 1 if a file has none.

    It is such that `int(width * part)`, as families compute it, is that count again. A width that is not a finite
    number is rejected with the config's other values.
    """
    count = own.get("rope.dimension_count")
    if type(count) is not int or not isinstance(width, int | float) or not 0 < count <= width < math.inf:
        return 1.0
    part = count / width
    return part if int(width * part) == count else math.nextafter(part, 2.0)


def _loaded(family: Family) -> Dialect | None:
    """A family's dialect, if it has one. Raises BU004 if it cannot be loaded, or is no `Dialect`."""
    found = family.load("dialect")
    if found is None or isinstance(found, Dialect):
        return found
    message = f"the dialect of `{family.name}` is a {type(found).__name__}, not a `Dialect`"
    raise fail("BU004", message, help=HELP)


def _dialects(failed: list[BringupError] | None = None) -> Iterator[tuple[Family, Dialect]]:
    """The families with a dialect. `failed` receives the error of each plugin and dialect that cannot be loaded."""
    for family in families(failed):
        try:
            dialect = _loaded(family)
        except BringupError as error:
            if failed is not None:
                failed.append(error)
        else:
            if dialect is not None:
                yield family, dialect


def dialect_of(family: Family, hyper: Hyperparameters) -> Dialect | None:
    """A family's dialect, if it has one. Raises BU227 for a file of another family, BU004 if it is no `Dialect`."""
    found = _loaded(family)
    if found is None or found.supports(hyper):
        return found
    other = family_of(hyper)
    name, known = short(hyper.architecture), ", ".join(f"`{name}`" for name in found.names)
    read = "others of that name" if hyper.architecture in found.names else known
    raise fail(
        "BU227",
        f"`{hyper.path}` has GGUF architecture `{name}`; the dialect of `{family.name}` reads {read}",
        help=f"did you mean the model `{other.name}`?" if other else HELP,
        file=str(hyper.path),
    )


def family_of(hyper: Hyperparameters) -> Family | None:
    """The family whose dialect a file is in, or None. Raises BU126 if several packages have one."""
    served: list[Family] = []
    for family, dialect in _dialects():
        if dialect.supports(hyper):
            if family in FAMILIES:
                return family
            served.append(family)
    if len(served) > 1:
        named = " and ".join(f"`{family.name}`" for family in served)
        raise fail("BU126", f"several families serve `{short(hyper.architecture)}`: {named}", help="name one as MODEL")
    return served[0] if served else None


def no_dialect(hyper: Hyperparameters, family: Family | None) -> BringupError:
    """BU227 for a family without a dialect for the file, BU125 if no family resembles the file's architecture."""
    name = hyper.architecture
    known = {plain(family.name): family for family in families()}
    of_that_name = (each for each, dialect in _dialects([]) if name in dialect.names)
    family = family or known.get(plain(name)) or next(of_that_name, None)
    if family is not None and family.dialect is not None:
        message = f"`{hyper.path}` is a GGUF file of architecture `{short(name)}` that `{family.name}` does not support"
        help = "its dialect reads other files of this architecture: compare their hyperparameters (`bringup inspect`)"
        return fail("BU227", message, help=help, file=str(hyper.path))
    if family is not None:
        where = f"adapters/dialects/{family.name}.py" if family in FAMILIES else "Family(dialect=…)"
        return fail(
            "BU227",
            f"`{hyper.path}` is a GGUF file of architecture `{short(name)}`, and `{family.name}` has no GGUF dialect",
            help=f"write {where}: its config keys and a table of its tensors; {HELP}",
            file=str(hyper.path),
        )
    failed: list[BringupError] = []
    spoken = [name for _, dialect in _dialects(failed) for name in dialect.names]
    read = ", ".join(f"`{name}`" for name in dict.fromkeys(spoken))
    return plugins.not_found(
        failed,
        code="BU125",
        message=f"no graph serves GGUF architecture `{short(name)}`; those that are read: {read}",
        help=did_you_mean(name, spoken) or "`bringup explain adding-a-model` shows how to add a model with its dialect",
        file=str(hyper.path),
    )


def plain(name: str) -> str:
    """A name in a form common to llama.cpp and transformers: `qwen3moe` and `qwen3_moe`."""
    return "".join(char for char in name.lower() if char.isalnum())
