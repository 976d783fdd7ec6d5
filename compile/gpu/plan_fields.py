"""Checks of the fields of `kernels.json`: their types, and the limits of devices. The file is not trusted."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from bringup.compile.gpu.driver.arguments import packed

GRID_X, GRID_YZ = 2**31 - 1, 65_535  # blocks of a grid (CUDA programming guide, "Technical Specifications")
MOST_WARPS, MOST_SHARED = 32, 1 << 20  # warps of a block (same table); bytes, more than any device has
MOST_SCRATCH = 1 << 40  # bytes, more than the memory of any device
ALIGNED = 256  # bytes to which an allocation is aligned (`Driver.allocate`)
_DIGEST = re.compile(r"[0-9a-f]{64}")
_ARCHITECTURE = re.compile(r"sm_\d{2,3}[af]?|gfx[0-9a-f]{3,4}")
Check = Callable[[Any], bool]


def field_problems(data: Mapping[str, Any]) -> Iterator[str]:
    """A message for each invalid field in the JSON of a plan, before a plan is created from it.

    Raises KeyError, TypeError, AttributeError or ValueError if its structure is wrong.
    """
    for name in ("capability", "target"):
        if not _text(data[name], _ARCHITECTURE):
            yield f"`{name}` is {data[name]!r:.80}"
    if not _listed(data["ptx_version"], _in(0, 99)) or len(data["ptx_version"]) != 2:
        yield f"`ptx_version` is {data['ptx_version']!r:.80}"
    for number, kernel in enumerate(data["kernels"]):
        yield from (f"kernel {number}: `{name}` is {value!r:.80}" for name, value in _wrong(kernel, _KERNEL))
        settings = kernel["kernel"]
        yield from (f"kernel {number}: `{name}` is {value!r:.80}" for name, value in _wrong(settings, _SETTINGS))
    if len({str(kernel["kernel"]) for kernel in data["kernels"]}) != len(data["kernels"]):
        yield "duplicate kernel"
    for function, groups in data["calls"].items():
        for call in (call for group in groups for call in group):
            yield from (f"a call of `{function}`: {problem}" for problem in _of_call(call, data["kernels"]))
    for entry, drawing in data["sampling"].items():
        yield from (f"the sampling of `{entry}`: {problem}" for problem in _of_drawing(drawing, data["kernels"]))


def number_problem(type_: str, value: float) -> str:
    """The reason why a value cannot be passed as an argument of a type (`i32`, `fp32`); "" if it can."""
    try:
        packed((type_,), (value,))
    except (ValueError, OverflowError, struct.error) as error:
        return str(error)
    return ""


def _of_drawing(drawing: Any, kernels: Sequence[Any]) -> Iterator[str]:
    if isinstance(drawing, list):
        yield "it has no calls of the last launch, as in earlier versions"
        return
    for call in (*drawing["last"], *drawing["after"]):
        yield from _of_call(call, kernels)


def _of_call(call: Mapping[str, Any], kernels: Sequence[Any]) -> Iterator[str]:
    yield from (f"`{name}` is {value!r:.80}" for name, value in _wrong(call, _CALL))
    if not _in(0, len(kernels) - 1)(call["kernel"]):
        yield f"`kernel` is {call['kernel']!r:.80} of {len(kernels)}"


def _wrong(fields: Mapping[str, Any], checks: Mapping[str, Check]) -> Iterator[tuple[str, Any]]:
    yield from ((name, fields[name]) for name, check in checks.items() if not check(fields[name]))


def _in(minimum: int, maximum: int) -> Check:
    """A check for integers of a range. JSON's `true` and 2.0 are not integers."""
    return lambda value: type(value) is int and minimum <= value <= maximum


def _text(value: Any, form: re.Pattern[str]) -> bool:
    return isinstance(value, str) and form.fullmatch(value) is not None


def _name(value: Any) -> bool:
    return isinstance(value, str) and value.isprintable() and value != ""


def _listed(value: Any, check: Check) -> bool:
    return isinstance(value, list) and all(map(check, value))  # pyright: ignore[reportUnknownArgumentType]


def _names(value: Any) -> bool:
    return _listed(value, _name)


def _digest(value: Any) -> bool:
    return _text(value, _DIGEST)


def _constant(pair: Any) -> bool:
    match pair:
        case [str(), None | bool() | int() | float() | str()]:
            return True
        case _:
            return False


def _grid(value: Any) -> bool:
    return _listed(value, _in(1, GRID_X)) and len(value) == 3 and all(map(_in(1, GRID_YZ), value[1:]))


def _argument(value: Any) -> bool:
    match value:
        case [str(), offset]:
            return _in(0, MOST_SCRATCH)(offset)
        case bool():
            return False
        case int() | float():
            return True
        case _:
            return False


_KERNEL: dict[str, Check] = {
    "digest": _digest,
    "ptx_digest": _digest,
    "name": _name,
    "types": _names,
    "num_warps": _in(1, MOST_WARPS),
    "warp_size": lambda value: value in (32, 64) and type(value) is int,
    "shared": _in(0, MOST_SHARED),
    "global_scratch_size": _in(0, MOST_SCRATCH),
    "global_scratch_align": _in(1, ALIGNED),
    "waits": lambda value: isinstance(value, bool),
}
_SETTINGS: dict[str, Check] = {
    "stem": _name,
    "types": _names,
    "constants": lambda value: _listed(value, _constant),
    "aligned": lambda value: _listed(value, _in(0, 1 << 10)),
    "num_warps": _in(1, MOST_WARPS),
    "num_stages": _in(0, 64),
}
_CALL: dict[str, Check] = {
    "grid": _grid,
    "arguments": lambda value: _listed(value, _argument),
    "scratch": _in(0, MOST_SCRATCH),
}
