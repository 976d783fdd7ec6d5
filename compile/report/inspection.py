"""The contents of a checkpoint, from its headers and its config.json, for adding a model."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from bringup.adapters.algebra.expr import Source
from bringup.adapters.checkpoints.checkpoint import Checkpoint
from bringup.adapters.dialects.dialect import family_of
from bringup.adapters.planning.quantization import (
    WORDS,
    format_of,
    parts_of,
    quantization_path,
    quantization_words,
)
from bringup.adapters.planning.rules import Tied
from bringup.adapters.schemes.registry import read_quantisation
from bringup.compile.adapter_file import adapter_of
from bringup.diagnostics import BringupError, Diagnostic
from bringup.graphs.config.fields import Fields
from bringup.graphs.config.hf_config import architectures
from bringup.graphs.config.neutral import NEUTRAL
from bringup.graphs.family import Family
from bringup.graphs.registry import FAMILIES, by_architecture
from bringup.grouping import counted
from bringup.shown import shown
from bringup.spec import DTYPES, Shape, TensorInfo

MOST_NEAR = 3  # families that are named if none serves the architecture
# Files next to the weights: of a tokenizer, or of generation.
TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "vocab.json", "vocab.txt", "merges.txt", "chat_template.jinja", "chat_template.json",
    "generation_config.json",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Group:
    """Tensors of one shape and dtype whose names differ in their numbers: `name` has ranges, `h.{0..11}.w`.

    `shape` is that of each tensor; `nbytes` is the sum over all `count` of them, as stored.
    """

    name: str
    count: int
    shape: Shape
    dtype: str
    nbytes: int

    @property
    def elements(self) -> int:
        return self.count * math.prod(self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """`family` is the name of the one that serves the architecture, None if none does.

    The keys of the config are `known` (the family reads them), `neutral` (they never affect the result) or `unread`.
    `refused` are findings on keys that are read. If no family serves the architecture, `near` are the families that fit
    the config best, with the keys that each leaves unread. `tied` are parameters that the config ties, with their
    tensor; `quantized` are facts about the quantisation, `tokenizer` files with their bytes. `findings` are the errors
    of the checkpoint's files.
    """

    source: str
    format: str
    files: Mapping[str, int]
    groups: list[Group]
    architectures: list[str]
    family: str | None
    known: Mapping[str, Any]
    neutral: Mapping[str, Any]
    unread: Mapping[str, Any]
    refused: list[Diagnostic]
    near: list[tuple[str, list[str]]]
    tied: list[tuple[str, str]]
    quantized: list[tuple[str, str]]
    tokenizer: list[tuple[str, int]]
    findings: list[Diagnostic]


def inspection(checkpoint: Checkpoint) -> Inspection:
    """Reads no tensor, and imports neither torch nor numpy. Raises BU121 for invalid `architectures` of the config."""
    raw = checkpoint.config
    names, family = architectures(raw), _family(checkpoint)
    read, refused, settings = _read(family, raw) if family else (set[str](), [], None)
    read |= _quantisation_keys(raw, family) if family else set()
    rest = {key: value for key, value in raw.items() if key not in read}
    unread = {key: value for key, value in rest.items() if key not in NEUTRAL}
    return Inspection(
        source=checkpoint.source,
        format=checkpoint.format,
        files=checkpoint.provenance.get("files", {}),
        groups=list(groups_of(checkpoint.headers)),
        architectures=names,
        family=family.name if family else None,
        known={key: value for key, value in raw.items() if key in read},
        neutral={key: value for key, value in rest.items() if key in NEUTRAL},
        unread=unread,
        refused=refused,
        near=[] if family or checkpoint.gguf or not raw else _near(raw),
        tied=list(_tied(family, settings, checkpoint)) if family and settings is not None else [],
        quantized=list(_quantized(checkpoint)),
        tokenizer=list(_tokenizer(checkpoint)),
        findings=list(checkpoint.findings),
    )


def groups_of(headers: Mapping[str, TensorInfo]) -> Iterator[Group]:
    """The tensors by name without numbers, dtype and shape, in the order of the file."""
    alike: dict[tuple[str, Shape], dict[str, TensorInfo]] = {}
    for name, info in headers.items():
        alike.setdefault((info.dtype, tuple(info.shape)), {})[name] = info
    found: dict[str, Group] = {}
    for (dtype, shape), tensors in alike.items():
        each = next(iter(tensors.values())).nbytes or DTYPES[dtype].nbytes(shape)
        for name, count in counted(tensors):
            found[f"{name} {dtype} {shape}"] = Group(name, count, shape, dtype, count * each)
    yield from sorted(found.values(), key=lambda group: _place(group.name))


def _place(name: str) -> tuple[bool, str]:
    """Groups of layers after single tensors; otherwise by name."""
    return "{" in name, name


def _family(checkpoint: Checkpoint) -> Family | None:
    """The family that serves the checkpoint's architecture."""
    if checkpoint.gguf:
        return family_of(checkpoint.gguf)
    names = architectures(checkpoint.config)
    try:
        return by_architecture(names) if names else None
    except BringupError as error:
        if error.findings[0].code == "BU125":
            return None
        raise


def _read(family: Family, raw: Mapping[str, Any]) -> tuple[set[str], list[Diagnostic], Any]:
    """The keys that a family reads, the findings on their values, and the settings; None for stand-ins."""
    fields = Fields(raw, family.name)
    settings = family.load("config").from_fields(fields)
    unknown = {each.parameter for each in fields.findings if each.code == "BU120"} & raw.keys()  # not nested
    refused = [each for each in fields.findings if each.parameter not in unknown]
    return fields.read & raw.keys() - unknown, refused, None if fields.has_errors else settings


def _quantisation_keys(raw: Mapping[str, Any], family: Family) -> set[str]:
    """The key of the `quantization_config` if a scheme reads it."""
    return {quantization_path(raw)[0]} & raw.keys() if read_quantisation(raw, family.name).stored else set()


def _near(raw: Mapping[str, Any]) -> list[tuple[str, list[str]]]:
    """Families ordered by the number of keys that are unread, rejected or missing; then by that of keys read."""
    found: list[tuple[int, int, str, list[str]]] = []
    for family in (each for each in FAMILIES if each.architectures):
        read, wrong, _ = _read(family, raw)
        left = [key for key, value in raw.items() if key not in {*read, *NEUTRAL} and value is not None]
        found.append((len(left) + len(wrong), -len(read), family.name, left))
    return [(name, left) for _, _, name, left in sorted(found)[:MOST_NEAR]]


def _tied(family: Family, settings: Any, checkpoint: Checkpoint) -> Iterator[tuple[str, str]]:
    """Parameters that the config ties to a tensor, and whether they are stored as well."""
    table = adapter_of(family, checkpoint, None, settings)
    stored = table.names(checkpoint.headers)
    for rule in table.rules:
        tie = rule.expr
        if isinstance(tie, Tied) and tie.alike and tie.when:
            names = [expr.name for expr in rule.every if isinstance(expr, Source)]
            if len(names) == len(rule.every):
                yield rule.pattern, " or ".join(names[1:]) + (", and stored itself" if names[0] in stored else "")


def _quantized(checkpoint: Checkpoint) -> Iterator[tuple[str, str]]:
    """The keys of `quantization_config`, and the formats that names and dtypes of tensors show."""
    words = quantization_words(checkpoint.config)
    inner: object = words.get("quantization")  # ModelOpt's keys, as in hf_quant_config.json
    if isinstance(inner, Mapping):
        words = {**words, **cast("Mapping[str, object]", inner)}
    yield from ((key, shown(words[key])) for key in WORDS if key in words)
    method = str(words.get("quant_method", ""))
    rows = [row.name for parts in parts_of(checkpoint.headers).values() if (row := format_of(parts, method))]
    rows += [info.dtype for info in checkpoint.headers.values() if DTYPES[info.dtype].block]
    for name, number in Counter(rows).items():
        yield name, f"{number:,} {'matrix' if number == 1 else 'matrices'}"


def _tokenizer(checkpoint: Checkpoint) -> Iterator[tuple[str, int]]:
    """The files of a tokenizer next to the weights; a GGUF file may contain one itself."""
    place = checkpoint.provenance.get("path")
    if place is None:
        return
    folder = Path(place) if Path(place).is_dir() else Path(place).parent
    yield from _sizes(folder / name for name in TOKENIZER_FILES)
    if checkpoint.gguf and checkpoint.tokenizer and checkpoint.tokenizer.suffix != ".json":
        yield f"{checkpoint.tokenizer.name}, {checkpoint.gguf.vocab or 0:,} tokens", 0


def _sizes(files: Iterable[Path]) -> Iterator[tuple[str, int]]:
    yield from ((file.name, file.stat().st_size) for file in files if file.is_file())
