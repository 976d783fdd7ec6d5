"""adapter_config.json, as peft writes it: the meaning of each key for the result, or the reason why it is rejected.

Source: `LoraConfig` of peft (src/peft/tuners/lora/config.py, 0.21) and, for matching of names, `get_pattern_key` of
src/peft/utils/other.py and `check_target_module_exists` of src/peft/tuners/tuners_utils.py.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any, cast

from bringup.adapters.lora.expressions import Unbounded, check, ends, fullmatch
from bringup.adapters.lora.name_patterns import MOST_FORMS, NamePatterns, is_last
from bringup.diagnostics import BringupError, Diagnostic, fail
from bringup.shown import shown

_Words = dict[str, Any]
LEAST_ALPHA = 1e-30  # beyond this or its inverse, a scale in float32 may become 0 or infinity
FILE = "adapter_config.json"
ALL_LINEAR = "all-linear"

# Keys that do not affect the result of a trained adapter: its origin, and how it was trained.
OF_TRAINING = frozenset({
    "auto_mapping", "base_model_name_or_path", "corda_config", "eva_config", "fan_in_fan_out", "inference_mode",
    "init_lora_weights", "loftq_config", "lora_dropout", "lora_ga_config", "megatron_config", "megatron_core",
    "peft_type", "peft_version", "qalora_group_size", "revision", "runtime_config", "task_type", "velora_config",
})  # fmt: skip
HONOURED = frozenset({
    "alpha_pattern", "bias", "ensure_weight_tying", "exclude_modules", "layers_pattern", "layers_to_transform",
    "lora_alpha", "modules_to_save", "r", "rank_pattern", "target_modules", "target_parameters",
    "trainable_token_indices", "use_dora", "use_rslora",
})  # fmt: skip
# Methods that are more than ΔW = B · A: those that a merge applies, and those that are rejected, with the reason.
MERGED = {
    "use_dora": "DoRA scales each row of W + B · A to a trained magnitude",
    "modules_to_save": "these modules were trained in full",
    "trainable_token_indices": "rows of the embedding were trained",
    "bias": "biases of the base were trained",
}
REFUSED = {
    "lora_bias": "B has a bias",
    "layer_replication": "layers of the base occur several times",
    "alora_invocation_tokens": "aLoRA applies from a sequence of tokens on",
    "use_qalora": "QALoRA pools its input",
    "use_bdlora": "BD-LoRA's factors are block-diagonal",
    "arrow_config": "Arrow chooses among adapters by token",
    "kasa_config": "KaSA changes the base's singular values",
    "monteclora_config": "MonteCLoRA adds noise to the factors",
}
# Values of `init_lora_weights` that subtract the initial factors from the base.
CHANGES_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")
MERGE = "merge the adapter into its base with the program that trained it, and use that as the checkpoint"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraConfig:
    """The keys of adapter_config.json that affect names and results. Names are modules', without peft's own prefix."""

    rank: int  # 0: from the tensors
    alpha: float
    rslora: bool = False
    rank_pattern: NamePatterns = field(default_factory=NamePatterns)
    alpha_pattern: NamePatterns = field(default_factory=NamePatterns)
    modules: str | AbstractSet[str] = frozenset()  # a regular expression, or last sections of names
    parameters: AbstractSet[str] = frozenset()
    excluded: str | AbstractSet[str] = frozenset()
    layers: AbstractSet[int] = frozenset()
    layer_names: Sequence[str] = ()
    tied: bool = False  # the LoRA of the embedding is also added to a head that is tied to it
    dora: bool = False
    saved: Sequence[str] = ()  # ends of names of modules that were trained in full
    tokens: Mapping[str, Sequence[int]] = field(default_factory=dict[str, Sequence[int]])  # rows by ends of names
    biases: bool = False
    more: Sequence[str] = ()  # keys of MERGED that have an effect

    def rank_of(self, name: str) -> int:
        """The rank of a module."""
        return self.rank_pattern.value(name, self.rank)

    def scale_of(self, name: str, rank: int) -> float:
        """The factor on B · A of a module: alpha / r, or alpha / √r if it is rank-stabilised."""
        alpha = self.alpha_pattern.value(name, self.alpha)
        return alpha / math.sqrt(rank) if self.rslora else alpha / rank

    def targets_module(self, name: str, *, linear: bool = True) -> bool:
        """Whether `target_modules` includes a module; `linear`: a linear layer that is not the head."""
        if _matches(self.excluded, name):
            return False
        if isinstance(self.modules, str):
            return linear if self.modules.lower() == ALL_LINEAR else _matches(self.modules, name)
        if name in self.modules:  # a complete name, whatever `layers_to_transform` is
            return True
        return _matches(self.modules, name) and (not self.layers or self._layer(name) in self.layers)

    def targets_parameter(self, name: str) -> bool:
        """Whether `target_parameters` includes a parameter."""
        return _matches(self.parameters, name)

    def _layer(self, name: str) -> int | None:
        patterns = [rf"(?:^|.*?\.)(?:{each})" for each in self.layer_names] or [r".*?\.[^.]*"]
        numbers = {hit.start(): int(hit[1]) for hit in re.finditer(r"\.(\d+)(?=\.)", name)}
        return next((numbers[at] for each in patterns for at in sorted(numbers.keys() & ends(each, name))), None)


def _matches(words: str | AbstractSet[str], name: str) -> bool:
    return fullmatch(words, name) if isinstance(words, str) else is_last(words, name)


def read_lora_config(words: Mapping[str, Any], file: str) -> tuple[LoraConfig, list[Diagnostic]]:
    """The config, and BU161 for each rejected key. Raises BU160 for a key that is missing or invalid."""
    kind = words.get("peft_type", "LORA")
    if kind != "LORA":
        help = f"{MERGE}; only plain LoRA is applied without merging"
        raise fail("BU161", f"`{file}` is of the method {shown(kind)}, not of LoRA", help=help, file=file)
    findings = [_refusal(file, name, value, why) for name, value in words.items() if (why := _why(name, value))]
    wrong = [_unreadable(file, name, words.get(name), want) for name, (want, test) in _TYPES.items()
             if not test(words.get(name))]  # fmt: skip
    if wrong:
        raise BringupError(*wrong)
    config = LoraConfig(
        rank=words["r"],
        alpha=words["lora_alpha"],
        rslora=bool(words.get("use_rslora")),
        rank_pattern=NamePatterns.of(words.get("rank_pattern") or {}),
        alpha_pattern=NamePatterns.of(words.get("alpha_pattern") or {}),
        modules=_names(words.get("target_modules")),
        parameters=frozenset(_several(words.get("target_parameters"))),
        excluded=_names(words.get("exclude_modules")),
        layers=frozenset(_several(words.get("layers_to_transform"))),
        layer_names=_several(words.get("layers_pattern") or None),
        tied=bool(words.get("ensure_weight_tying")),
        dora=bool(words.get("use_dora")),
        saved=_several(words.get("modules_to_save") or None),
        tokens=_tokens(words.get("trainable_token_indices") or {}),
        biases=_trains_biases(words),
        more=[name for name in MERGED if (_trains_biases(words) if name == "bias" else words.get(name))],
    )
    for name, count, expressions in _expressions(config):
        if count > MOST_FORMS:
            want = f"at most {MOST_FORMS} expressions, as every module is compared with each"
            raise BringupError(_unreadable(file, name, words[name], want))
        for each in expressions:
            try:
                check(each)
            except (re.error, Unbounded) as error:
                want = f"a regular expression that can be matched in bounded time ({error})"
                raise BringupError(_unreadable(file, name, each, want)) from None
    return config, findings


def _expressions(config: LoraConfig) -> Iterator[tuple[str, int, Sequence[str]]]:
    """Each key with expressions: their number, and those that are no names."""
    for name, patterns in (("rank_pattern", config.rank_pattern), ("alpha_pattern", config.alpha_pattern)):
        yield name, patterns.forms, [each for _, each in patterns.others]
    yield "layers_pattern", len(config.layer_names), config.layer_names
    for name, each in (("target_modules", config.modules), ("exclude_modules", config.excluded)):
        if isinstance(each, str):
            yield name, 1, [each]


def _names(value: Any) -> Any:
    """An expression, or the set of the names in a list."""
    return value if isinstance(value, str) and value else frozenset(value or ())


def _several(value: Any) -> tuple[Any, ...]:
    return () if value is None else tuple(cast("list[Any]", value)) if isinstance(value, list) else (value,)


def _tokens(value: Any) -> Mapping[str, Any]:
    """Rows of the embedding (""), or of modules by the ends of their names."""
    return cast("_Words", value) if isinstance(value, dict) else {"": value}


def _trains_biases(words: Mapping[str, Any]) -> bool:
    return words.get("bias") not in (None, "none")


def _why(name: str, value: Any) -> str:
    """The reason why a key of the config is rejected; "" for one that is not."""
    if name == "init_lora_weights" and str(value).lower().startswith(CHANGES_BASE):
        return "this start changes the base's weights; save with `path_initial_model_for_weight_conversion`"
    if name in OF_TRAINING | HONOURED or value in (None, False, [], {}, ""):
        return ""
    return REFUSED.get(name, "its effect on the weights is unknown")


def _refusal(file: str, name: str, value: Any, why: str) -> Diagnostic:
    message = f"`{name}` = {shown(value)} is not applied: {why}"
    return Diagnostic(code="BU161", message=message, help=MERGE, file=file)


def _unreadable(file: str, name: str, value: Any, want: str) -> Diagnostic:
    what = "is absent" if value is None else f"is {shown(value)}"
    help = "use the file that was saved with the adapter; no value is assumed instead"
    return Diagnostic(code="BU160", message=f"`{name}` {what} in `{file}`; expected {want}", help=help, file=file)


def _is_number(value: Any) -> bool:
    """Whether it is a finite number that a float can hold: an integer of JSON may have hundreds of digits."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def is_alpha(value: Any) -> bool:
    """Whether an adapter's scale can follow from it."""
    return _is_number(value) and LEAST_ALPHA < abs(value) < 1 / LEAST_ALPHA  # with 0 the adapter would have no effect


def _is_rank(value: Any) -> bool:
    return type(value) is int and value > 0


def _is_words(value: Any) -> bool:
    return isinstance(value, str) or _is_list(value)


def _is_rows(value: Any) -> bool:
    """Whether it is a list of different numbers, or several by names of modules."""
    lists: list[Any] = [*_tokens(value or []).values()]
    return all(isinstance(rows, list) and _is_layers(rows) and _differ(cast("list[int]", rows)) for rows in lists)


def _differ(numbers: Sequence[int]) -> bool:
    return len({*numbers}) == len(numbers)


def _is_list(value: Any) -> bool:
    return value is None or (isinstance(value, list) and all(isinstance(each, str) for each in _several(value)))


def _is_layers(value: Any) -> bool:
    return value is None or all(type(each) is int and each >= 0 for each in _several(value))


def _map_of(test: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or (isinstance(value, dict) and all(map(test, cast("_Words", value).values())))


_TYPES: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "r": ("an integer above 0", _is_rank),
    "lora_alpha": ("a number other than 0 in the range of float32", is_alpha),
    "rank_pattern": ("integers above 0 by patterns of names", _map_of(_is_rank)),
    "alpha_pattern": ("numbers other than 0 in the range of float32, by patterns of names", _map_of(is_alpha)),
    "target_modules": ("names, or a regular expression", lambda value: value is None or _is_words(value)),
    "target_parameters": ("names", _is_list),
    "exclude_modules": ("names, or a regular expression", lambda value: value is None or _is_words(value)),
    "layers_to_transform": ("numbers of layers", _is_layers),
    "layers_pattern": ("names", lambda value: value is None or _is_words(value)),
    "modules_to_save": ("names", _is_list),
    "trainable_token_indices": ("different numbers of tokens, or a list of them by names of modules", _is_rows),
    "bias": ("`none`, `all` or `lora_only`", lambda value: value in (None, "none", "all", "lora_only")),
    "use_dora": ("true or false", lambda value: value is None or isinstance(value, bool)),
    "use_rslora": ("true or false", lambda value: value is None or isinstance(value, bool)),
    "ensure_weight_tying": ("true or false", lambda value: value is None or isinstance(value, bool)),
}
