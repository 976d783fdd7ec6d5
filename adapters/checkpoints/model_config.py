"""The keys of a model's config, and those that a quantiser wrote to a separate file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, cast

from bringup.adapters.checkpoints.bounded_json import read_config
from bringup.adapters.checkpoints.config_places import CONFIG, IN_CONFIG, ConfigPlaces
from bringup.adapters.checkpoints.files import is_named
from bringup.diagnostics import BringupError, Diagnostic, Severity
from bringup.shown import shown

MODELOPT = "hf_quant_config.json"  # NVIDIA ModelOpt's; newer versions write the keys to config.json as well
AUTOAWQ = "quant_config.json"  # of AutoAWQ before it wrote the keys to config.json
NAMES = ("quantization_config", "compression_config")


class ModelConfig(NamedTuple):
    """The keys of a config.json and their places; and the findings on it, or on the file that contradicts it."""

    words: dict[str, Any]
    findings: Sequence[Diagnostic] = ()
    places: ConfigPlaces = IN_CONFIG


def model_config(folder: Path) -> ModelConfig:
    """config.json of a folder, with a quantiser's own file as its `quantization_config`; {} if there is none.

    A `quantization_config` in config.json takes precedence; BU151, a warning, if hf_quant_config.json has other values.
    A config.json that is not readable is a finding, because another may take its place: {}, with BU202 or BU233. Raises
    these for the quantiser's own file.
    """
    config, modelopt, awq = (folder / name for name in (CONFIG, MODELOPT, AUTOAWQ))
    if not is_named(config):
        return ModelConfig({})
    try:
        words = read_config(config)
    except BringupError as error:
        return ModelConfig({}, error.findings)
    places = ConfigPlaces(path=config)
    stated = next((words[name] for name in NAMES if words.get(name)), None)
    if stated is not None:
        return ModelConfig(words, [*_contradiction(stated, modelopt)] if modelopt.is_file() else (), places)
    if modelopt.is_file():
        return _with_quantisation(config, words, "modelopt", read_config(modelopt), MODELOPT)
    if awq.is_file() and "w_bit" in (found := read_config(awq)):
        return _with_quantisation(config, words, "awq", found, AUTOAWQ)
    return ModelConfig(words, places=places)


def unreadable_config(findings: Iterable[Diagnostic]) -> list[Diagnostic]:
    """The findings of `model_config` on a config.json that is not readable."""
    return [found for found in findings if found.code in ("BU202", "BU233") and Path(found.file).name == CONFIG]


def _with_quantisation(
    path: Path, words: dict[str, Any], method: str, found: Mapping[str, Any], file: str
) -> ModelConfig:
    """The keys of a config.json with those of a quantiser's own file."""
    places = ConfigPlaces(others={NAMES[0]: file}, path=path)
    return ModelConfig(words | {NAMES[0]: {"quant_method": method, **found}}, places=places)


def _contradiction(stated: object, file: Path) -> Iterator[Diagnostic]:
    """BU151 if ModelOpt's file has other values than the `quantization_config` of config.json, for keys of both."""
    try:
        other = {"quant_method": "modelopt", **read_config(file)}
    except BringupError as error:
        yield from (replace(finding, severity=Severity.WARNING) for finding in error.findings)
        return
    facts = _facts(stated), _facts(other)
    both = [key for key in facts[0] if key in facts[1] and facts[0][key] != facts[1][key]]
    if both:
        here, there = (", ".join(f"`{key}` = {_shown(each[key])}" for key in both) for each in facts)
        here = here.replace("`exclude_modules`", "`ignore`" if "ignore" in _object(stated) else "`exclude_modules`")
        yield Diagnostic(
            code="BU151",
            severity=Severity.WARNING,
            message=f"{CONFIG} sets {here}, and {file.name} sets {there}; the former is used",
            help=f"other programs read {file.name}: correct the one that is wrong, or remove it",
            parameter=NAMES[0],
            expected=here,
            actual=there,
            file=str(file),
        )


def _facts(words: object) -> Mapping[str, object]:
    """The quantisation of the weights, in either spelling: `exclude_modules` is `ignore` in config.json.

    ModelOpt's `convert_hf_quant_config_format` (modelopt/torch/export/convert_hf_config.py) has both.
    """
    outer = _object(words)
    own = _object(outer.get("quantization")) or outer
    method = outer.get("quant_method")
    found = dict[str, object]()
    if isinstance(method, str):
        found["quant_method"] = "modelopt" if method.startswith("modelopt") else method
    algorithm = own.get("quant_algo")
    if isinstance(algorithm, str):
        found["quant_algo"] = algorithm.upper()
    found |= {key: own[key] for key in ("group_size", "quantized_layers") if own.get(key) is not None}
    for key in ("ignore", "exclude_modules"):
        if isinstance(modules := own.get(key), list):
            found["exclude_modules"] = {str(module) for module in cast("list[object]", modules)}
    return found


def _object(value: object) -> Mapping[str, object]:
    return cast("Mapping[str, object]", value) if isinstance(value, Mapping) else {}


def _shown(value: object) -> str:
    return shown(sorted(cast("set[str]", value)) if isinstance(value, set) else value)
