"""Hints of installed libraries on an architecture, which a draft uses only after a proof.

transformers: the configuration class (defaults of absent keys), `conversion_mapping.py` (`conversions`) and the text of
the modelling file (rope in pairs, the kind of norm). vLLM: `packed_modules_mapping` of the model's class, read from its
source: vLLM itself is not imported.
"""

from __future__ import annotations

import ast
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

from bringup.compile.draft.facts.conversions import PARTS, conversions_of
from bringup.compile.draft.modelling.inert import alone_in, inert_keys, rejections
from bringup.compile.draft.modelling.meaning import meaning_of
from bringup.compile.draft.modelling.own_code import OwnCode, own_code
from bringup.compile.draft.modelling.part import Part
from bringup.compile.draft.modelling.parts import modelling_file, parts_of
from bringup.compile.draft.modelling.properties import quotient_of
from bringup.compile.draft.modelling.settled import settled_keys
from bringup.compile.draft.modelling.stated import Meaning

NO_WORDS: Mapping[str, Any] = {}


@dataclass(slots=True)
class Hints:
    """`defaults`: of absent keys of config.json, {} if unknown. `roles`: by a tensor's last word. `packed`: parts of
    a fused tensor, in order, by its last word. `in_order`: the last words of tensors that have q, then k, then v.
    `in_modules`: the name of a tensor in transformers' modules. `pairs`: whether rope rotates adjacent channels.
    `norm`: the class of norms; `plain_norm`: that of norms without a weight, if all are; `eps`: their epsilon, if the
    code has it as a number. `rope`: whether there is rope. `by_head`, `by_group`: whether the rows of one tensor of q,
    k and v are read head by head, or key head by key head with the queries of each. `resolved`: the config with the
    keys that transformers' class adds. `aliases`: config keys by the names that the code has for them. `quotients`: the
    two keys of properties that the code reads. `meaning`: what the modelling code computes, None if unknown; `parts`:
    its classes, and `values`: those of config keys in it. `inert`: keys that nothing reads. `settled`: those that only
    choose statements, or the shapes of tensors. `statements` are those of `code`: transformers, or a file of the
    checkpoint. `sources`: the origin of each, for people. `absent`: why transformers gave none, and what to install;
    "" if it did."""

    defaults: Mapping[str, Any] = field(default_factory=dict[str, Any])
    roles: dict[str, str] = field(default_factory=dict[str, str])
    packed: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    in_order: frozenset[str] = frozenset()
    in_modules: Callable[[str], str] = str
    pairs: bool | None = None
    norm: str | None = None
    plain_norm: str | None = None
    eps: float | None = None
    rope: bool | None = None
    by_head: bool = False
    by_group: bool = False
    resolved: Mapping[str, Any] = field(default_factory=dict[str, Any])
    aliases: Mapping[str, str] = field(default_factory=dict[str, str])
    quotients: Mapping[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])
    meaning: Meaning | None = None
    parts: Mapping[str, Part] = field(default_factory=dict[str, Part])
    values: Mapping[str, Any] = field(default_factory=dict[str, Any])
    inert: frozenset[str] = frozenset()
    settled: frozenset[str] = frozenset()
    code: str = "transformers"
    statements: tuple[str, ...] = ()
    sources: list[str] = field(default_factory=list[str])
    absent: str = ""


def hints_of(raw: Mapping[str, Any], architecture: str, folder: Path) -> Hints:
    """All hints of installed libraries on a config's `model_type` and architecture, or else those of the code in the
    folder of the checkpoint."""
    hints = Hints()
    model_type = raw.get("model_type")
    if isinstance(model_type, str) and re.fullmatch(r"[\w-]+", model_type):
        _from_transformers(hints, model_type, raw, architecture)
    if hints.absent and (own := own_code(raw, folder)):
        _from_own_code(hints, own)
    _from_vllm(hints, architecture)
    return hints


def _from_transformers(hints: Hints, model_type: str, raw: Mapping[str, Any], architecture: str) -> None:
    if find_spec("transformers") is None:
        hints.absent = _absent("transformers is not installed", "it", model_type, "'bringup[verify]'")
        return
    from transformers import CONFIG_MAPPING, __version__

    if model_type not in CONFIG_MAPPING:
        state = f"transformers {__version__} does not have `{model_type}`"
        hints.absent = _absent(state, "a later version", model_type, "--upgrade transformers")
        return
    kind = cast("Any", CONFIG_MAPPING[model_type])
    logging.disable(logging.WARNING)  # warnings on inconsistent defaults
    try:
        hints.defaults = {"rope_theta": getattr(kind, "default_theta", 10000.0), **kind().to_dict()}
        hints.resolved = _resolved(kind, raw)
        hints.aliases = dict(getattr(kind, "attribute_map", {}))
    finally:
        logging.disable(logging.NOTSET)
    hints.sources.append(f"transformers' {kind.__name__}: what absent keys mean")
    if (file := modelling_file(model_type, architecture)) is not None:
        _read_text(hints, file.read_text("utf-8"), f"transformers' {file.name}")
    _read_meaning(hints, model_type, raw, architecture, kind)
    if found := conversions_of(model_type):
        hints.roles |= found.roles
        hints.in_order, hints.in_modules = found.in_order, found.in_modules
        hints.sources.append("transformers' conversion_mapping.py: the names of its modules")


def _from_own_code(hints: Hints, own: OwnCode) -> None:
    hints.code, hints.statements, hints.defaults = own.name, own.statements, own.defaults
    hints.sources.append(f"{own.name} of the checkpoint: quoted in questions on config keys")
    if own.defaults:
        hints.sources.append("the checkpoint's config class: what absent keys mean")
    if re.search("rotary|rotate", own.text):
        _read_text(hints, own.text, f"{own.name} of the checkpoint")


def _absent(state: str, source: str, model_type: str, package: str) -> str:
    return (
        f"{state}: if {source} has `{model_type}`, its code answers most questions; pip install {package}, "
        "and draft again with another -o"
    )


def _resolved(kind: Any, raw: Mapping[str, Any]) -> dict[str, Any]:
    """The config with the keys that its class adds; {} if the class rejects it, which `check` reports."""
    try:
        return kind(**raw).to_dict()
    except rejections():
        return {}


def _read_meaning(hints: Hints, model_type: str, raw: Mapping[str, Any], architecture: str, kind: Any) -> None:
    """What the classes of the architecture compute for this config, and the keys that have no effect."""
    file = modelling_file(model_type, architecture)
    values = dict(hints.resolved)
    values |= {name: values[key] for name, key in hints.aliases.items() if key in values}
    parts = parts_of(file, architecture, values) if file is not None and hints.resolved else {}
    if file is None or not parts:
        return
    hints.meaning, hints.parts, hints.values = meaning_of(parts), parts, values
    hints.statements = hints.meaning.statements
    if hints.norm is None and hints.meaning.layer_norms:
        hints.norm = "ScaleNorm"  # if the norms have no bias
    read = {hints.meaning.factors[place] for place in hints.meaning.factors} - values.keys()
    hints.quotients = {name: both for name in read if (both := quotient_of(kind, name))}
    hints.eps = hints.meaning.eps if hints.eps is None else hints.eps
    settled = frozenset(hints.aliases.get(key, key) for key in settled_keys(parts, values))
    hints.inert, hints.settled = inert_keys(kind, raw, file), settled & alone_in(kind, raw, file)
    hints.sources.append(f"transformers' {file.name}: the statements of {architecture}")


def _read_text(hints: Hints, text: str, source: str) -> None:
    """Facts that no shape shows, from the text of a modelling file."""
    hints.rope = re.search("rotary|rotate", text, re.IGNORECASE) is not None
    if not hints.rope:
        hints.pairs = False
        hints.sources.append(f"{source}: no rope")
    else:
        hints.pairs = _pairs(text)
    hints.by_head = re.search(r"(num_heads|-1), 3( \* self\.head_\w+|, self\.head_\w+)\)", text) is not None
    hints.by_group = re.search(r"kv_heads \+ 2, self\.head_\w+\)", text) is not None
    if hints.by_head or hints.by_group:
        hints.sources.append(f"{source}: the order of q, k and v in one tensor")
    if re.search(r"1\.0 \+ self\.weight|self\.weight(\.float\(\))? \+ 1", text):
        hints.norm = "OnePlusRMSNorm"
    elif re.search(r"mean = hidden_states\.mean\(-1, keepdim=True\)", text):
        hints.norm = "ScaleNorm"
    elif re.search(r"self\.weight \* hidden_states\.to\(input_dtype\)", text):
        hints.norm = "RMSNorm"
    elif re.search(r"\(self\.weight(\.to\(torch\.float32\))? \* hidden_states\)\.to\(input_dtype\)", text):
        hints.norm = "Float32RMSNorm"
    hints.plain_norm, hints.eps = _norms(text)
    if hints.rope and (hints.pairs is not None or hints.norm):
        hints.sources.append(f"{source}: how rope rotates, and the kind of norm")


def _pairs(text: str) -> bool | None:
    """Whether rope rotates adjacent channels, by the function that rotates; None if it is not known."""
    if "torch.chunk(x, 2, dim=-1)" in text and "first_half * cos - second_half * sin" in text:
        return False
    named = "rotate_half" in text or "rotate_every_two" in text
    return re.search(r"x\[(\.\.\.|:, :, :), 0?::2\]", text) is not None if named else None


def _norms(text: str) -> tuple[str | None, float | None]:
    """The class of norms without a weight, and the epsilon that the code states, from the classes of norms."""
    blocks = [match[0] for match in re.finditer(r"^class \w+Norm\(.*?(?=^\S)", text, re.DOTALL | re.MULTILINE)]
    if not blocks or any("self.weight" in block for block in blocks):
        return None, None
    numbers = {number for block in blocks for number in re.findall(r"layer_norm\(.*eps=([\d.e-]+)\)", block)}
    if all("layer_norm(" in block and "None, None" in block for block in blocks):
        return "PlainNorm", float(numbers.pop()) if len(numbers) == 1 else None
    means = any(" - " in block for block in blocks)
    return (None if means or not all("rsqrt(" in block for block in blocks) else "PlainRMSNorm"), None


def _from_vllm(hints: Hints, architecture: str) -> None:
    spec = find_spec("vllm")
    roots = [Path(place) for place in (spec.submodule_search_locations or ())] if spec else []
    for models in (root / "model_executor" / "models" for root in roots):
        if not architecture or not (models / "registry.py").is_file():
            continue
        for packed in _packed_modules(models, architecture):
            for fused, parts in packed.items():
                if (roles := PARTS.get(fused)) and len(roles) == len(parts):
                    hints.roles |= {part: role for part, role in zip(parts, roles, strict=True) if part != fused}
                    hints.packed[fused] = roles
            hints.sources.append("vLLM's packed_modules_mapping: which tensors are merged")
            return


def _packed_modules(models: Path, architecture: str) -> Iterable[Mapping[str, list[str]]]:
    """The mapping of an architecture's class, from the text of its module."""
    found = re.search(rf"[\"']{re.escape(architecture)}[\"']:\s*\(\s*[\"'](\w+)[\"'],\s*[\"'](\w+)[\"']",
                      (models / "registry.py").read_text("utf-8"))  # fmt: skip
    if not found or not (file := models / f"{found[1]}.py").is_file():
        return
    for node in ast.parse(file.read_text("utf-8")).body:
        if isinstance(node, ast.ClassDef) and node.name == found[2]:
            for line in node.body:
                names = line.targets if isinstance(line, ast.Assign) else []
                if isinstance(line, ast.Assign) and [getattr(name, "id", "") for name in names] == [
                    "packed_modules_mapping"
                ]:
                    try:
                        yield ast.literal_eval(line.value)
                    except ValueError:  # computed when the class is created
                        return
