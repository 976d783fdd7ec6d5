"""The list of targets: bringup's own, then those of installed packages."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from bringup import plugins
from bringup.compile.cache.source_digest import files_behind
from bringup.compile.targets.gpu import GPU_TARGETS
from bringup.compile.targets.iree_cpu import IREE_CPU
from bringup.compile.targets.iree_gpu import IREE_GPU
from bringup.compile.targets.llvm import LLVM
from bringup.compile.targets.schedule import SCHEDULE_TARGET
from bringup.compile.targets.target import Option, Target
from bringup.compile.targets.torch import TORCH
from bringup.diagnostics import BringupError, did_you_mean, fail

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

BUILT_IN: tuple[Target, ...] = (TORCH, IREE_CPU, LLVM, SCHEDULE_TARGET, *GPU_TARGETS, *IREE_GPU)
FORMER = {"cpu": IREE_CPU.name}  # names in manifests of the first bundles
_WORD = r"[a-z0-9][a-z0-9._-]*"
_NAME = re.compile(_WORD)  # of an option
_TARGET = re.compile(rf"{_WORD}(:{_WORD})?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    """A target, the distribution that offers it ("" for bringup itself), and the source files that define it."""

    target: Target
    package: str = ""
    files: frozenset[Path] = frozenset()


def aliases() -> dict[str, str]:
    """Other names of targets, by name: `cpu` is the best target for the processor of this machine.

    The threads of `llvm` are POSIX threads, which Windows does not support: there it is IREE.
    """
    return {"cpu": IREE_CPU.name if sys.platform == "win32" else LLVM.name}


def names() -> list[str]:
    """The values of `--target`. No plugin is imported: for an installed package, the names of its entry points."""
    known = [target.name for target in BUILT_IN]
    return list(dict.fromkeys([*known, *aliases(), *(point.name for point in plugins.points(plugins.TARGETS))]))


def registered(failed: list[BringupError] | None = None) -> Iterator[Registered]:
    """The built-in targets, then those of installed packages (entry point group `bringup.targets`).

    A plugin that cannot be loaded is omitted; `failed` receives its error.
    """
    yield from (Registered(target=target) for target in BUILT_IN)
    for point in plugins.points(plugins.TARGETS):
        try:
            yield _loaded(point)
        except BringupError as error:
            if failed is not None:
                failed.append(error)


def find(name: object) -> Registered:
    """The target of a name or an alias. Raises BU006 for an unknown one, BU402 if several packages have one."""
    full = aliases().get(name, name) if isinstance(name, str) else name
    for target in BUILT_IN:
        if target.name == full:
            return Registered(target=target)
    failed: list[BringupError] = []
    found = [each for each in registered(failed) if each.target.name == full]
    if len(found) > 1:
        packages = " and ".join(f"`{each.package}`" for each in found)
        raise fail("BU402", f"several packages offer the target `{full}`: {packages}", help="uninstall all but one")
    if found:
        return found[0]
    family = [each for each in names() if each.startswith(f"{name}:")]
    hint = f"one of {', '.join(family)}" if family else did_you_mean(str(name), names()) or f"one of {_listed()}"
    raise plugins.not_found(failed, code="BU006", message=f"unknown target `{name}`", help=hint)


def family_of(target: Target) -> str:
    """The name before the colon; "" for a target without a family."""
    return target.name.partition(":")[0] if ":" in target.name else ""


def target_named(name: str) -> Target:
    """The target of a name or an alias; a user's target may delegate to it. Raises as `find` does."""
    return find(name).target


def of_bundle(manifest: Mapping[str, Any]) -> Registered:
    """The target of a bundle. Raises BU923 if it is not installed, with the name of its distribution."""
    name, package = manifest["target"], manifest.get("target_package") or ""
    full = FORMER.get(name, name)
    failed: list[BringupError] = []
    for each in registered(failed):
        if each.target.name == full and each.package == package:
            return each
    label = f"target `{name}` of the package `{package}`" if package else f"target `{name}`"
    raise plugins.not_found(
        failed,
        code="BU923",
        message=f"the bundle was compiled for the {label}, which is not installed",
        help=f"install `{package}`, or compile the model again for another target"
        if package
        else "compile the model again; `bringup targets` lists the targets",
    )


def _listed() -> str:
    """All names, those of a family once: `torch, iree-cpu, cuda:…`."""
    return ", ".join(dict.fromkeys(f"{name.partition(':')[0]}:…" if ":" in name else name for name in names()))


def _loaded(point: EntryPoint) -> Registered:
    """Raises BU026 for an entry point that cannot be loaded, or is not a usable target."""
    target: Target = plugins.load(point, Target, _problem)
    module = plugins.module_of(point)
    files = {Path(file) for file in (getattr(sys.modules.get(module), "__file__", None),) if file}
    for part in (target, *target.implementations.values()):
        files |= set(files_behind(part))
    # If no file is known, a path that cannot be read: then no key can be computed, and nothing is cached.
    package = point.dist.name if point.dist else ""
    return Registered(target=target, package=package or "?", files=frozenset(files or {Path(f"<{module}>")}))


def _problem(target: Any) -> str:
    """The reason why a plugin's object is unusable as a target; "" for none."""
    if isinstance(target, type):
        return "is a class; name an object of it"
    name, options = getattr(target, "name", None), getattr(target, "options", None)
    if not isinstance(name, str) or not _TARGET.fullmatch(name):
        return f"has a name that is not lower case letters, digits, `-`, `_` and `.`: {name!r}"
    if name in aliases() or any(name == own.name for own in BUILT_IN):
        return f"has the name of one of bringup's own targets: `{name}`"
    if not isinstance(getattr(target, "summary", None), str):
        return "has no `summary`"
    if not isinstance(options, Mapping) or not all(
        isinstance(key, str) and _NAME.fullmatch(key) and isinstance(option, Option)
        for key, option in cast("Mapping[object, object]", options).items()
    ):
        return "has `options` that are not a mapping from names to `Option`s"
    for key, kind in (("requires", tuple), ("runs_with", tuple), ("phases", tuple), ("opaque", frozenset)):
        texts = getattr(target, key, None)
        if not isinstance(texts, kind) or not all(isinstance(e, str) and e for e in cast("tuple[object, ...]", texts)):
            return f"has `{key}` that is not a {kind.__name__} of texts"
    functions = getattr(target, "implementations", None)
    if not isinstance(functions, Mapping) or not all(map(callable, cast("Mapping[str, object]", functions).values())):
        return "has `implementations` that are not a mapping from names to functions"
    return ""
