"""Files of activations: what a reference computed, on this machine or another, for a later verification.

A safetensors file, or an .npz. For each module, by its path, it has the output as `NAME` and the input as `NAME@input`,
float tensors [T, …]; and `logits` [T, vocab]. The tokens [T] are the metadata's `tokens` (a JSON list), or a tensor of
that name. docs/verify.md describes the format.
"""

from __future__ import annotations

import json
import os
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from bringup.adapters.checkpoints.bounded_json import strict_value
from bringup.arguments import path as text_of
from bringup.compile.job import Job
from bringup.compile.parity.owners import counterparts, owners_by_name
from bringup.compile.parity.reference import INPUT
from bringup.diagnostics import BringupError, did_you_mean, fail
from bringup.graphs.core.module import Module
from bringup.system.destination import check_new_file, check_new_folder
from bringup.system.os_errors import reason, unwritable

LOGITS, TOKENS = "logits", "tokens"
FILE = ".safetensors"  # the end of the name of a file for the activations of the reference alone
_AGAIN = "record it again; `bringup explain verify` shows how"


@dataclass(frozen=True, slots=True)
class Saved:
    """A reference read from a file: float32 [T, …] by name, in the file's order; `dtype` is "" if the file has none."""

    name: str
    tokens: list[int]
    arrays: dict[str, np.ndarray]
    dtype: str

    def logits(self, tokens: list[int]) -> np.ndarray | None:
        """Float32 [len(tokens), V], where `tokens` is a prefix of the file's; None if no logits were saved."""
        return self.arrays[LOGITS][: len(tokens)] if LOGITS in self.arrays else None

    def activations(self, tokens: list[int]) -> dict[str, np.ndarray]:
        """Inputs and outputs of modules for a prefix of the tokens: float32 [len(tokens), …] by name."""
        return {name: array[: len(tokens)] for name, array in self.arrays.items() if name != LOGITS}


def save_activations(
    path: str | Path, activations: Mapping[str, np.ndarray], tokens: Sequence[int], **metadata: str
) -> Path:
    """Writes activations [T, …] of T tokens to a safetensors file, as float32, atomically; returns its path.

    `metadata` is text. `load_activations` reads two keys of it: `reference` (who computed the activations) and `dtype`
    (in which type). Raises BU901 and BU902.
    """
    from safetensors.numpy import save

    tensors = {name: np.ascontiguousarray(array, np.float32) for name, array in activations.items()}
    header = {"format": "bringup activations 1", TOKENS: json.dumps([int(token) for token in tokens]), **metadata}
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, part = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(save(tensors, header))
            Path(part).chmod(0o644)
            Path(part).replace(path)
        finally:
            Path(part).unlink(missing_ok=True)
    except OSError as error:
        raise unwritable(error, path) from error
    return path


def checked_place(given: str | os.PathLike[str] | None, option: str = "save=") -> Path | None:
    """Where activations are to be saved: a file `.safetensors`, or a folder. Raises BU901 if they cannot be."""
    if given is None:
        return None
    place = Path(text_of("save", given))
    check_new_folder(place.parent if place.suffix == FILE else place, option)
    if place.suffix == FILE and place.exists():
        check_new_file(place, option)
    return place


def load_activations(path: str | Path) -> Saved:
    """Reads a file that `save_activations`, or numpy's `savez`, wrote.

    Raises BU034 if there is no such file, BU706 if it is not a file of activations, BU707 for tensors that do not
    match the tokens, and BU708 for NaN or infinity.
    """
    path = Path(path)
    if not path.is_file():
        hint = did_you_mean(str(path), ["transformers"]) or "`bringup verify MODEL --save FILE.safetensors` writes one"
        raise fail("BU034", f"no such file: `{path}`", help=hint, file=str(path))
    arrays, metadata = _npz(path) if path.suffix == ".npz" else _safetensors(path)
    tokens = _tokens(path, arrays.pop(TOKENS, None), metadata.get(TOKENS))
    if not arrays:
        raise fail("BU706", f"`{path}` contains no activations", help=_AGAIN)
    found = {name: _checked(path, name, array, len(tokens)) for name, array in arrays.items()}
    return Saved(metadata.get("reference") or path.name, tokens, found, metadata.get("dtype", ""))


def _safetensors(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    from bringup.adapters.checkpoints.arrays import mapped
    from bringup.adapters.checkpoints.safetensors import read_header

    arrays = {name: mapped(path, info) for name, info in read_header(path).items()}
    with path.open("rb") as file:  # the reader above has checked all of this
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    return arrays, header.get("__metadata__", {})


def _npz(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    try:
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise fail("BU706", f"`{path}` cannot be read as .npz: {reason(error)}", help=_AGAIN) from error
    text = {name: str(arrays.pop(name)) for name in ("reference", "dtype") if name in arrays}
    return arrays, text


def _tokens(path: Path, array: Any, text: str | None) -> list[int]:
    """The token ids, of a tensor or of the metadata. Raises BU706 if there are none, or not one row of integers."""
    given: Any = array
    if given is None and text is not None:
        try:
            given = np.array(strict_value(text.encode()))
        except ValueError:
            given = np.array(text)
    if given is None:
        help = "save the model's input tokens: a tensor or a metadata entry `tokens`"
        raise fail("BU706", f"`{path}` does not state the tokens of its activations", help=help)
    if given.ndim == 2 and len(given) == 1:
        given = given[0]
    if given.ndim != 1 or not len(given) or given.dtype.kind not in "iu":
        message = f"{given.dtype} {list(given.shape)}"
        raise fail("BU706", f"`tokens` of `{path}` is {message}; expected one row of token ids", help=_AGAIN)
    return given.tolist()


def _checked(path: Path, name: str, array: np.ndarray, count: int) -> np.ndarray:
    """A tensor as float32 [T, …]. Raises BU707 for another dtype or length, BU708 for NaN or infinity."""
    if array.ndim > 2 and array.shape[0] == 1:
        array = array[0]
    if array.dtype.kind not in "fV" and array.dtype.name not in ("bfloat16", "float16"):
        raise _mismatch(f"`{name}` of `{path}` is {array.dtype}; activations are floats", name)
    if array.ndim < 2 or len(array) != count:
        raise _mismatch(f"`{name}` of `{path}` has shape {list(array.shape)} for {count} tokens", name)
    wide = array.astype(np.float32)
    if not np.isfinite(wide).all():
        raise not_finite(str(path), name, wide)
    return wide


def fitted(saved: Saved, job: Job, source: str) -> Saved:
    """A saved reference, checked against a job's model; without `logits`, these are the output of its head.

    Its dtype must be the model's, or float32, which separates mistakes from rounding best. Raises BU015 for tokens
    beyond the vocabulary, and BU707 for names, widths and dtypes that do not match the model.
    """
    vocab, dtype = job.graph.config.vocab_size, job.graph.dtype
    wrong = [token for token in saved.tokens if not 0 <= token < vocab]
    if wrong:
        raise fail("BU015", f"token {wrong[0]} of `{source}` is not in the vocabulary of {vocab}", help=_AGAIN)
    if saved.dtype and saved.dtype not in (dtype, "float32"):
        help = f"verify with --dtype {saved.dtype}, or record in float32"
        raise _mismatch(f"`{source}` was computed in {saved.dtype}, this model is {dtype}", "", help)
    modules = {name.partition(INPUT)[0] for name in saved.arrays}
    names = counterparts(job.plan, owners_by_name(modules, job.plan), modules)
    known = [*(names.get(name, name) for name in _modules(job.graph)), LOGITS]
    if not modules & set(known):
        name = next(iter(saved.arrays)).partition(INPUT)[0]
        hint = did_you_mean(name, known) or f"this model has {', '.join(known[:3])}, …"
        raise _mismatch(f"`{source}` has no module of this model: its first is `{name}`", name, hint)
    heads = [name for name in known if name in saved.arrays and saved.arrays[name].shape[-1] == vocab]
    if LOGITS in saved.arrays and LOGITS not in heads:
        width = saved.arrays[LOGITS].shape[-1]
        raise _mismatch(f"`{LOGITS}` of `{source}` has {width} columns, the vocabulary {vocab} tokens", LOGITS)
    return replace(saved, arrays=saved.arrays | {LOGITS: saved.arrays[heads[-1]]}) if heads else saved


def _modules(module: Module, prefix: str = "") -> Iterator[str]:
    """The path of every module of a graph."""
    for name, part in module.children():
        if isinstance(part, Module):
            yield prefix + name
            yield from _modules(part, f"{prefix}{name}.")


def mismatched(source: str, name: str, theirs: tuple[int, ...], ours: tuple[int, ...]) -> BringupError:
    """BU707 for a tensor whose shape is not that of the model's."""
    message = f"`{name}` of `{source}` has shape {list(theirs)}, this model's {list(ours)}"
    return _mismatch(
        message, name, "is the file of another size of the model? omit the tensor if it is not a module's output"
    )


def not_finite(source: str, name: str, array: np.ndarray) -> BringupError:
    """BU708 for an array [T, …] of a reference."""
    row = int(np.argwhere(~np.isfinite(array))[0][0])
    what = "NaN" if np.isnan(array).any() else "infinity"
    return fail(
        "BU708",
        f"`{name}` of `{source}` has {what} at token {row}: nothing can be compared with it",
        help="the reference itself is wrong: float16 ends at 65504; in float32 check that module's weights",
        parameter=name,
    )


def _mismatch(message: str, name: str, help: str = _AGAIN) -> BringupError:
    return fail("BU707", message, help=help, parameter=name)
