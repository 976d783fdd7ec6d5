"""The base of the families' config dataclasses, which are created from config.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, Self, cast

from bringup.diagnostics import BringupError, Diagnostic, Severity
from bringup.graphs.config.fields import Fields
from bringup.graphs.config.unread_keys import misspelt, unknown_key

# A graph does not depend on how the checkpoint is stored: adapters/schemes reads it.
OF_CHECKPOINT = frozenset({"quantization_config", "compression_config"})


def architectures(raw: Mapping[str, Any]) -> list[str]:
    """The architectures that a config.json lists; [] if none. Raises BU121 if they are not strings.

    A single string is a list of one, as in SGLang's model registry.
    """
    named = raw.get("architectures")
    fields = Fields({"architectures": [named]} if isinstance(named, str) else raw, "the choice of a graph")
    names = fields.strings("architectures")
    if fields.findings:
        raise BringupError(*fields.findings)
    return names or []


def quantisation(raw: Mapping[str, Any]) -> str:
    """The `quant_method` of a config.json's `quantization_config`; "" without one."""
    words = raw.get("quantization_config")
    method = cast("Mapping[str, Any]", words).get("quant_method") if isinstance(words, Mapping) else None
    return method if isinstance(method, str) else ""


class HFConfig:
    """Base of the families' frozen config dataclasses, created from config.json."""

    __slots__ = ()
    family: ClassVar[str]
    model_types: ClassVar[tuple[str, ...]] = ()  # of config.json; a class that lists none accepts all
    drafts_for: ClassVar[tuple[str, ...]] = ()  # `architectures` of main models that the config of a draft may have

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        """Reads every key that affects the result; `fields` records what is wrong."""
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
        """The config, and its findings. After a BU121 or a BU124 some of its values are stand-ins.

        A misspelt key is one finding: its value is read as that of the key that it resembles.
        """
        fields = Fields(raw, cls.family, allow)
        fields.read |= OF_CHECKPOINT
        config, findings = cls.from_fields(fields), fields.done()
        intended = misspelt(raw, fields.read, fields.allowed)
        if not intended:
            return config, findings
        again = Fields({intended.get(key, key): value for key, value in raw.items()}, cls.family, allow)
        again.read |= OF_CHECKPOINT
        corrected = cls.from_fields(again)
        if any(finding.parameter in intended.values() for finding in again.findings):
            return config, findings  # the value is not valid for the resembled key
        wrong = [unknown_key(key, raw[key], fields.read, cls.family) for key in intended]
        return corrected, [*wrong, *again.done()]


class Sized(Protocol):
    """The config of a decoder."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def max_positions(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockConfig(HFConfig):
    """The config of a model that contains a decoder, whose config is `block`: it has the same tokens and positions."""

    block: Sized

    @property
    def vocab_size(self) -> int:
        return self.block.vocab_size

    @property
    def max_positions(self) -> int:
        return self.block.max_positions
