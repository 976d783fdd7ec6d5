"""The modules that GPTQ quantises, and their settings: the keys of its `quantization_config`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, cast

from bringup.adapters.schemes.scheme import Modules, StoredMatrix
from bringup.graphs.config.expression import Expression
from bringup.graphs.config.fields import Fields
from bringup.graphs.core.form import WHOLE
from bringup.shown import shown

BITS = (4, 2, 3, 8)
DEFAULT_GROUP = 128
HEAD = "lm_head"
MOST_OVERRIDES = 200  # expressions that are compared with every module
LONGEST = 1000  # entries of the list of modules of a block

# How the weights were optimised and how a program multiplies: none of it affects the result.
NEUTRAL = frozenset({
    "sym", "static_groups", "true_sequential", "damp_percent", "damp_auto_increment", "mse", "act_group_aware",
    "hyb_act", "dataset", "tokenizer", "batch_size", "pad_token_id", "model_seqlen", "max_input_length",
    "cache_block_outputs", "block_name_to_quantize", "meta", "quantizer", "module_name_preceding_first_block",
    "model_name_or_path", "model_file_base_name", "backend", "use_exllama", "disable_exllama", "exllama_config",
    "use_cuda_fp16", "method",
})  # fmt: skip
# Those of AutoRound (`SERIALIZATION_KEYS` in auto_round/compressors/base.py), which it also writes to the config of a
# checkpoint that it exports as GPTQ or AWQ.
AUTO_ROUND = frozenset({
    "autoround_version", "iters", "lr", "minmax_lr", "nsamples", "seqlen", "batch_size",
    "gradient_accumulate_steps", "scale_dtype", "amp", "backend", "enable_quanted_input", "enable_minmax_tuning",
    "enable_norm_bias_tuning", "enable_alg_ext", "low_gpu_mem_usage", "model_free", "super_bits",
    "super_group_size", "act_data_type", "act_dynamic", "act_group_size", "act_sym", "dataset",
    "to_quant_block_names", "quant_block_list", "damp_percent", "true_sequential", "static_groups", "model_seqlen",
    "provider", "supported_types", "static_kv_dtype", "static_attention_dtype",
})  # fmt: skip


class Groups(NamedTuple):
    """The storage of a matrix: `size` inputs share a scale, WHOLE for all. `own_order`: `g_idx` assigns them."""

    bits: int
    size: int
    own_order: bool


class Override(NamedTuple):
    """The settings of modules whose names match a prefix expression; None for modules that are not quantised."""

    expression: Expression
    groups: Groups | None


@dataclass(frozen=True, slots=True)
class Selection:
    """`usual` are the settings of modules without others. `head`: whether the model's head is quantised.

    With `endings`, only modules with such a name suffix are quantised. The settings in `named`, or else those of the
    first of `overrides` that matches, take precedence.
    """

    usual: Groups
    head: bool = False
    endings: frozenset[str] = frozenset()
    named: Mapping[str, Groups | None] = field(default_factory=dict[str, "Groups | None"])
    overrides: tuple[Override, ...] = ()

    def groups(self, modules: Modules) -> Groups | None:
        """The settings of a module, by its alternative names; None for one that is not quantised."""
        if HEAD in modules and not self.head:
            return None
        for module in modules:
            if module in self.named:
                return self.named[module]
        for expression, groups in self.overrides:
            if any(expression.matches(module) for module in modules):
                return groups
        if self.endings and HEAD not in modules:
            return self.usual if any(not self.endings.isdisjoint(_endings(module)) for module in modules) else None
        return self.usual


def _endings(module: str) -> Iterator[str]:
    """A module's name, and its suffixes after each dot."""
    while module:
        yield module
        module = module.partition(".")[2]


def read_groups(words: Fields) -> Groups:
    """`bits`, `group_size` and `desc_act`. Reports BU122 for an unsupported number of bits."""
    bits = words.get("bits", int)
    words.only("bits", *BITS)
    return Groups(int(bits) if bits in BITS else BITS[0], group_size(words), words.get("desc_act", bool, False))


def group_size(words: Fields, key: str = "group_size") -> int:
    """The number of inputs that share a scale, the value of a key; -1 is a complete row (WHOLE).

    Reports BU121 for other numbers below 1.
    """
    size = words.get(key, int, DEFAULT_GROUP)
    if size == -1:
        return WHOLE
    if size < 1:
        words.error("BU121", f"config key `{key}` is {size}; a number of inputs or -1 is needed", key)
        return DEFAULT_GROUP
    return int(size)


def outputs(weight: StoredMatrix) -> str:
    """The dimension of outputs for `within`: scales have no padding, and a part's rule may not know the full size."""
    scales = weight.tensors.get("scales")
    return str(scales.shape[-1]) if scales and scales.shape else "out"


def read_notes(words: Fields) -> None:
    """Marks keys without effect as read: GPTQ's, and AutoRound's if its version is there."""
    words.read |= NEUTRAL
    words.only("pack_dtype", "int32")
    if "autoround_version" in words.raw:
        read_auto_round(words)


def read_auto_round(words: Fields) -> None:
    """Marks AutoRound's keys without effect as read. Reports BU122 for weights or activations of other kinds."""
    words.read |= AUTO_ROUND
    words.only("data_type", "int")
    words.only("act_bits", 16, 32, None)


def read_selection(words: Fields, usual: Groups) -> Selection:
    """`lm_head`, `modules_in_block_to_quantize` and `dynamic`; also marks keys without effect as read."""
    read_notes(words)
    words.only("is_marlin_format", False)
    for key in ("adapter", "rotation"):
        words.only(key, None)
    head = words.get("lm_head", bool, False)
    return Selection(usual, head, _modules_of_block(words), overrides=tuple(_overrides(words, usual)))


def _modules_of_block(words: Fields) -> frozenset[str]:
    """A list of names, or of lists of names that were quantised together."""
    key = "modules_in_block_to_quantize"
    words.read |= {key}
    value = cast("object", words.raw.get(key))
    found: list[object] = []
    for entry in cast("list[object]", value) if isinstance(value, list) else ():
        found += cast("list[object]", entry) if isinstance(entry, list) else [entry]
    names = [name for name in found if isinstance(name, str)]
    if len(names) < len(found) or len(names) > LONGEST or (value is not None and not found):
        message = f"config key `{key}` is {shown(cast('object', value))}; lists of up to {LONGEST:,} names are needed"
        words.error("BU121", message, key, stops="")
    return frozenset(names)


def _overrides(words: Fields, usual: Groups) -> Iterator[Override]:
    """GPTQModel's `dynamic`: by expression, other settings; after `-:` modules that are not quantised."""
    dynamic = words.group("dynamic")
    if len(dynamic) > MOST_OVERRIDES:
        words.error("BU122", f"`dynamic` has more than {MOST_OVERRIDES} expressions", "dynamic")
        return
    for text, settings in dynamic.items():
        try:
            expression = Expression(text.removeprefix("-:").removeprefix("+:"))
        except ValueError as error:
            words.error("BU122", f"`dynamic` has {shown(text)}, which cannot be parsed: {error}", "dynamic")
            continue
        yield Override(expression, None if text.startswith("-:") else override(words, "dynamic", usual, settings))


def override(words: Fields, key: str, usual: Groups, settings: object) -> Groups:
    """The settings of some modules, if they differ from the usual. Reports BU122 under `key` for unsupported ones."""
    if not isinstance(settings, Mapping):
        words.error("BU121", f"`{key}` has {shown(settings)}; an object is needed", key, stops="")
        return usual
    own = cast("Mapping[str, object]", settings)
    fields = Fields({"bits": usual.bits, "group_size": usual.size or -1, "desc_act": usual.own_order, **own}, key)
    fields.read |= NEUTRAL
    found = read_groups(fields)
    for finding in fields.done():
        words.error("BU122", f"in `{key}`: {finding.message}", key)
    return found
