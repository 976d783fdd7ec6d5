"""Reading a config.json so that no key is overlooked.

Each key is read by the family, stands in a table of keys that change no number, or is a finding: a scale, window or
rope type that the graph does not implement never passes silently.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self, TypeVar, cast

from bringup.diagnostics import BringupError, Diagnostic, Severity, did_you_mean

T = TypeVar("T", int, float, str, bool)

# Training, generation and bookkeeping: none of these changes a logit at inference.
NEUTRAL = frozenset(
    """
    _name_or_path architectures model_type transformers_version torch_dtype dtype auto_map id2label label2id
    problem_type task_specific_params tokenizer_class prefix finetuning_task pruned_heads return_dict
    output_attentions output_hidden_states use_cache torchscript use_bfloat16 initializer_range
    attention_dropout attn_pdrop embd_pdrop resid_pdrop hidden_dropout gradient_checkpointing
    bos_token_id eos_token_id pad_token_id sep_token_id decoder_start_token_id unk_token_id
    max_length min_length do_sample early_stopping num_beams num_beam_groups diversity_penalty temperature top_k
    top_p typical_p repetition_penalty length_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size bad_words_ids
    num_return_sequences output_scores return_dict_in_generate forced_bos_token_id forced_eos_token_id
    remove_invalid_values exponential_decay_length_penalty suppress_tokens begin_suppress_tokens
    chunk_size_feed_forward is_encoder_decoder is_decoder cross_attention_hidden_size tf_legacy_loss
    summary_type summary_use_proj summary_activation summary_proj_to_labels summary_first_dropout
    pretraining_tp transformers.js_config attn_implementation _attn_implementation
    """.split()  # noqa: SIM905  as a list literal it would be 70 lines
)


class Fields:
    """The keys of one config.json, ticked off as a family reads them."""

    def __init__(self, raw: Mapping[str, Any], family: str, allow: Mapping[str, str] | None = None) -> None:
        self.raw = raw
        self.family = family
        self.allowed = dict(allow or {})
        self.read: set[str] = set()
        self.findings: list[Diagnostic] = []

    def take(self, key: str, kind: type[T], default: T | None = None) -> T:
        """The value of a key, or `default` when it is absent or null. A missing or mistyped value is a finding."""
        self.read.add(key)
        value: Any = self.raw.get(key)
        if value is None and default is not None:
            return default
        if kind is float and type(value) is int:
            value = float(value)
        if isinstance(value, kind) and (kind is not int or type(value) is int):
            return value
        said = "is missing" if value is None else f"is {value!r}"
        self.error("BU121", f"config key `{key}` {said}; {self.family} needs a value of type {kind.__name__}", key)
        return kind(1)  # stands in, so that the other keys are read as well

    def size(self, key: str, default: int | None = None) -> int:
        """A whole number that counts something: at least 1."""
        value = self.take(key, int, default)
        if value >= 1:
            return value
        self.error("BU121", f"config key `{key}` is {value}; {self.family} needs at least 1", key)
        return 1

    def maybe(self, key: str, kind: type[T]) -> T | None:
        """The value of a key that may be absent or null."""
        self.read.add(key)
        return None if self.raw.get(key) is None else self.take(key, kind)

    def words(self, key: str) -> list[str] | None:
        """A list of strings that may be absent or null."""
        self.read.add(key)
        value: Any = self.raw.get(key)
        if value is None or (isinstance(value, list) and all(isinstance(v, str) for v in cast(list[Any], value))):
            return cast("list[str] | None", value)
        self.error("BU121", f"config key `{key}` is {value!r}; {self.family} needs a list of strings", key)
        return None

    def group(self, key: str) -> dict[str, Any]:
        """The settings under one key; none when it is absent or null."""
        self.read.add(key)
        value: Any = self.raw.get(key)
        if value is not None and not isinstance(value, dict):
            self.error("BU121", f"config key `{key}` is {value!r}; {self.family} needs an object", key)
            return {}
        return cast("dict[str, Any]", value or {})

    def only(self, key: str, *allowed: Any) -> None:
        """A key for which the graph implements only some values; the first is what an absent key means."""
        self.read.add(key)
        value = self.raw.get(key, allowed[0])
        if value is not None and value not in allowed and key not in self.allowed:
            listed = ", ".join(repr(value) for value in allowed)
            self.error("BU122", f"config says `{key}` = {value!r}; the {self.family} graph implements {listed}", key)

    def error(self, code: str, message: str, key: str, help: str = "") -> None:
        """Notes a finding about a key."""
        self.findings.append(Diagnostic(code=code, message=message, parameter=key, help=help))

    def done(self) -> list[Diagnostic]:
        """Ends the reading: every finding, with those on keys that nobody read."""
        for key in self.raw.keys() - self.read - NEUTRAL - self.allowed.keys():
            value: Any = self.raw[key]
            empty = value is None or value in ([], {}, "")  # says nothing; false and 0 may well switch something off
            severity = Severity.NOTE if empty else Severity.ERROR
            message = f"config key `{key}` = {value!r} is not one that the {self.family} graph knows"
            hint = did_you_mean(key, self.read) or f"if it changes no number: --allow-config {key}=REASON"
            self.findings.append(Diagnostic(code="BU120", message=message, parameter=key, help=hint, severity=severity))
        return self.findings


class HFConfig:
    """Base of the families' frozen config dataclasses: built from the words of a config.json."""

    __slots__ = ()
    family: ClassVar[str]

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        """Reads every key that changes a number; what does not fit is noted in `fields`."""
        raise NotImplementedError

    @classmethod
    def from_hf(cls, raw: Mapping[str, Any], allow: Mapping[str, str] | None = None) -> Self:
        """From config.json. Raises BU12x for keys that are missing, unknown or not implemented."""
        config, findings = cls.read(raw, allow)
        if any(finding.severity is Severity.ERROR for finding in findings):
            raise BringupError(*findings)
        return config

    @classmethod
    def read(cls, raw: Mapping[str, Any], allow: Mapping[str, str] | None = None) -> tuple[Self, list[Diagnostic]]:
        """The config, and what is wrong with it. After a BU121 some of its values are stand-ins."""
        fields = Fields(raw, cls.family, allow)
        config = cls.from_fields(fields)
        return config, fields.done()
