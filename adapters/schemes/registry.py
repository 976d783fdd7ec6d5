"""The scheme of a config: bringup's own, then those of entry points."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple, cast

from bringup import plugins
from bringup.adapters.checkpoints.config_places import IN_CONFIG, ConfigPlaces
from bringup.adapters.planning.quantization import quantization_path, quantization_words
from bringup.adapters.schemes.scheme import Scheme, Stored
from bringup.diagnostics import BringupError, Diagnostic
from bringup.graphs.config.fields import Fields
from bringup.graphs.config.unquantized import UnquantizedModules
from bringup.nearest import nearest
from bringup.shown import shown

# Files of this folder, each with a `scheme`, by the methods that they read: only the one that is needed is imported.
OWN: Mapping[str, str] = {
    "fp8": "fp8", "fbgemm_fp8": "fp8", "mxfp4": "mxfp4", "compressed-tensors": "compressed_tensors",
    "modelopt": "modelopt", "modelopt_fp4": "modelopt", "modelopt_mixed": "modelopt", "quark": "quark",
    "awq": "awq", "gptq": "gptq", "auto-round": "auto_round", "bitsandbytes": "bitsandbytes",
}  # fmt: skip


OF_KEYS = ("BU120", "BU121", "BU122", "BU124")  # what `Fields` reports


class Quantisation(NamedTuple):
    """`stored` is the storage of the checkpoint's matrices; None if none is quantised, or if the keys are not
    supported.

    `findings` are about the keys. `unread`: for an unknown method, the modules that are not quantised; the method is an
    error only if the graph has others.
    """

    stored: Stored | None = None
    findings: Sequence[Diagnostic] = ()
    unread: UnquantizedModules | None = None


def read_quantisation(config: Mapping[str, Any], family: str, places: ConfigPlaces = IN_CONFIG) -> Quantisation:
    """From a config.json. Reports BU122 for keys that no scheme reads, BU026 for a plugin that fails.

    Messages name the file of the keys, by `places`, and their group in it.
    """
    words = quantization_words(config)
    if not words:
        return Quantisation()
    path = quantization_path(config)
    file = places.of(path[0])
    place = file if path[0] in places.others else f"`{'.'.join(path)}` of {file}"
    found = _read(words, family)
    return found._replace(findings=[_located(finding, file, place) for finding in found.findings])


def _located(finding: Diagnostic, file: str, place: str) -> Diagnostic:
    """A finding on a key of a group, with the place of the group."""
    if finding.code not in OF_KEYS:
        return finding
    text, help = finding.message, finding.help
    if text.startswith("config sets "):
        text = f"{place} {text.removeprefix('config ')}"
    else:
        text = f"in {place}, {text.removeprefix('config ')}"
    if "--allow-config" in help:  # which is for the keys of the graph
        start = help.partition("read it in")[0] if finding.code == "BU120" else ""
        help = f"{start}if it does not affect the weights, remove it from {file}"
    return replace(finding, message=text, help=help)


def _read(words: Mapping[str, Any], family: str) -> Quantisation:
    fields = Fields(words, f"{family} quantization")
    method = words.get("quant_method")
    try:
        found = scheme_of(method) if isinstance(method, str) else None
    except BringupError as error:
        return Quantisation(findings=error.findings)
    if found is None:
        unquantized = UnquantizedModules.from_fields(fields)
        known = sorted(methods())
        message = f"config sets `quant_method` = {shown(method)}; the supported schemes are: {', '.join(known)}"
        close = nearest(method, known) if isinstance(method, str) else []
        fields.error("BU122", message, "quant_method", f"did you mean `{close[0]}`?" if close else "")
        return Quantisation(findings=fields.findings, unread=unquantized)
    fields.read |= {"quant_method"}
    stored = found.read(fields)
    return Quantisation(stored, fields.done())


def methods() -> set[str]:
    """Every `quant_method` that a scheme reads."""
    return {*OWN, *(point.name for point in plugins.points(plugins.SCHEMES))}


@cache
def scheme_of(method: str) -> Scheme | None:
    """The scheme of a `quant_method`; the name of an entry point is its method. Raises BU026."""
    if method in OWN:
        return cast("Scheme", import_module(f"bringup.adapters.schemes.{OWN[method]}").scheme)
    for point in plugins.points(plugins.SCHEMES, method):
        return cast("Scheme", plugins.load(point, Scheme))
    return None
