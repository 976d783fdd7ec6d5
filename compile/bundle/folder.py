"""The result of a compile: a folder with a manifest, programs, weights and tokenizer.

It is written next to its final path and renamed atomically, so a bundle is always complete.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from bringup.compile.bundle.manifest import AGAIN, OtherSchemaError, read_form
from bringup.diagnostics import BringupError, Diagnostic, fail
from bringup.graphs.registry import is_registered
from bringup.progress import Progress, Silent
from bringup.system.atomic import exchange, flush, flush_tree, sha256, write_file
from bringup.system.destination import obstacle_to_folder
from bringup.system.lock import locked, sibling_path
from bringup.system.new_files import make_folder
from bringup.system.os_errors import reason, refusals, unwritable
from bringup.system.signals import signals_deferred

SCHEMA = 9
MANIFEST = "manifest.json"
WEIGHTS = "weights.safetensors"
TOKENIZER = "tokenizer"
PARITY = "parity.json"  # the result of `verify`: written after sealing, so the manifest does not list it
_TOOLS = ("bringup", "torch", "torch-mlir", "iree-base-compiler", "iree-base-runtime", "numpy")


def refuse(out: Path, *, force: bool, note: str = MANIFEST, inputs: Iterable[Path] = ()) -> None:
    """Raises BU011 if `out` exists and `force` is not set, BU012 if it exists and is not a bundle, or has one of the
    files `inputs`, which the caller reads.

    `note` is the file that identifies a folder: another one for other folders of bringup, such as `convert`'s. A link
    stands for its target. The working directory and its parents are not allowed: BU012. Raises BU901 if the parent
    folders are not writable, as far as that can be known before anything is written.
    """
    place = _resolved(out)
    if Path.cwd().is_relative_to(place):
        raise fail("BU012", f"`{out}` is the working directory or one above it", help="choose another name with -o")
    if why := obstacle_to_folder(place, replaced=True):
        raise fail("BU901", f"cannot write `{out}`: {why}", help="choose another path with -o")
    if place.exists():
        if not (place / note).is_file():
            kind = "a bundle" if note == MANIFEST else f"a folder that this command wrote: it has no {note}"
            raise fail("BU012", f"`{out}` exists and is not {kind}", help="choose another name with -o")
        if read := next((file for file in inputs if _resolved(file).is_relative_to(place)), None):
            message = f"`{out}` has `{read.name}`, which this command reads, and would be replaced"
            raise fail("BU012", message, help="choose another name with -o")
        if not force:
            raise fail("BU011", f"`{out}` exists", help="replace it with --force, or choose another name with -o")


def is_up_to_date(out: Path, key: str) -> bool:
    """Whether `out` is a bundle with this key of its inputs, and undamaged.

    The manifest is written last, so only files that were written later (by a copy that was interrupted, or by another
    program) are compared with their digests.
    """
    try:
        manifest = read_manifest(out)
        if not key or manifest.get("inputs_key") != key:
            return False
        sealed = (out / MANIFEST).stat().st_mtime_ns
        later = [name for name in manifest["files"] if (out / name).stat().st_mtime_ns > sealed]
        check_files(out, {"files": {name: manifest["files"][name] for name in later}})
    except (BringupError, OSError):
        return False
    return True


def _resolved(out: Path) -> Path:
    """`out` without links and `..`, so that it has a name and a parent folder."""
    try:
        return out.resolve()
    except (OSError, RuntimeError) as error:  # RuntimeError: a loop of links, up to Python 3.12
        why = reason(error) if isinstance(error, OSError) else "its symbolic links form a loop"
        raise fail("BU012", f"`{out}` cannot be resolved: {why}", help="choose another name with -o") from error


@contextmanager
def writing(
    out: Path,
    *,
    force: bool = True,
    progress: Progress | None = None,
    note: str = MANIFEST,
    inputs: Iterable[Path] = (),
) -> Generator[Path]:
    """A new folder that replaces `out` if the block succeeds, and is removed if it does not.

    No other process writes to `out` meanwhile: one of the two waits.
    Raises BU011 and BU012 as `refuse` does, BU013, and for errors of the system, in the block too, BU901 to BU903.
    """
    place = _resolved(out)
    folder = sibling_path(place, "part")
    with _folders(place.parent), locked(place, progress or Silent()), refusals(place):
        _recover(place)
        # The previous holder of the lock may have written a bundle there.
        refuse(out, force=force, note=note, inputs=inputs)
        try:
            make_folder(folder)
            yield folder
            _flush(folder)
            refuse(out, force=True, note=note)  # another program may have written there meanwhile
            with signals_deferred():
                _move(folder, place)
        except OSError as error:
            if error.filename and Path(os.fsdecode(error.filename)).is_relative_to(folder):
                raise unwritable(error, Path(os.fsdecode(error.filename))) from error
            raise
        finally:
            with signals_deferred():
                _recover(place)  # after an exchange, `folder` is the old folder


def _recover(place: Path) -> None:
    """Removes files that the last writer left next to `place`; restores a bundle that it had moved away."""
    old = sibling_path(place, "old")
    if old.exists() and not place.exists():
        old.rename(place)
    for path in (old, sibling_path(place, "part")):
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def _folders(parent: Path) -> Generator[None]:
    """Creates the parent folders of a bundle; those that remain empty are removed again."""
    lacking = [folder for folder in (parent, *parent.parents) if not folder.exists()]
    try:
        if lacking:
            make_folder(parent)
        yield
    finally:
        for folder in lacking:
            with suppress(OSError):
                folder.rmdir()


def _flush(folder: Path) -> None:
    try:
        flush_tree(folder)
    except OSError as error:
        raise unwritable(error, folder) from error


def _move(folder: Path, place: Path) -> None:
    """Moves a finished folder to its name, durably; exchanges the two atomically if the name is in use.

    The old folder is removed only when the new name is on disk: a power failure leaves one or the other.
    """
    try:
        exchanged = place.exists() and exchange(folder, place)
        if not exchanged:
            if place.exists():  # no exchange: the name is absent for a moment, but never incomplete
                place.rename(sibling_path(place, "old"))
            folder.rename(place)
        try:
            flush(place.parent)
        except OSError:
            _ = exchange(folder, place) if exchanged else place.rename(folder)
            raise
    except OSError as error:
        raise unwritable(error, place) from error


def seal(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Writes the manifest, with the tools' versions and the SHA-256 of every file."""
    files = {str(path.relative_to(folder)): sha256(path) for path in sorted(folder.rglob("*")) if path.is_file()}
    package = manifest.get("target_package")
    tools = dict(versions([package] if package else []))
    whole = {"schema": SCHEMA, **manifest, "tools": tools, "files": files}
    write_file(folder / MANIFEST, (json.dumps(whole, indent=2) + "\n").encode())


@contextmanager
def steady(bundle: Path) -> Generator[Callable[[], bool]]:
    """Yields a function: whether the folder of that name is still the one from the beginning of the block.

    The folder is open meanwhile, so that no later one gets its inode. Raises BU034, BU603.
    """
    try:
        descriptor = os.open(bundle, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise _absent(bundle) from error
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL
        raise _no_bundle(bundle, reason(error)) from error

    def same() -> bool:
        try:
            return os.path.samestat(os.fstat(descriptor), bundle.stat())
        except OSError:
            return False

    try:
        yield same
    finally:
        os.close(descriptor)


def read_manifest(bundle: Path) -> dict[str, Any]:
    """The manifest of a bundle. Raises BU034 if the folder does not exist, BU603 if this version cannot read it."""
    if not os.path.lexists(bundle):
        raise _absent(bundle)
    try:
        manifest = read_form(bundle / MANIFEST, SCHEMA)
    except OtherSchemaError as error:
        message = f"`{bundle}` was compiled by another version of bringup: {error}"
        raise fail("BU603", message, help="compile it again, or use it with the version that compiled it") from error
    except ValueError as error:
        raise fail("BU603", f"`{bundle}` is not a valid bundle: {error}", help=AGAIN) from error
    except BringupError as error:
        raise _no_bundle(bundle, error.findings[0].message) from error
    missing = [name for name in manifest["files"] if not (bundle / name).is_file()]
    if missing:
        raise fail("BU603", f"`{bundle}` lacks `{missing[0]}`", help=AGAIN)
    return manifest


def bundle_of(word: str | os.PathLike[str]) -> Path | None:
    """The bundle that a word names; None for a model's name, even if there is a folder of that name, or without a
    bundle.

    A bundle with a model's name is written as a path: `./gpt2`, or `Path("gpt2")`.
    """
    folder = Path(word)
    if not (folder / MANIFEST).is_file() or (isinstance(word, str) and is_registered(word)):
        return None
    return folder


def check_files(bundle: Path, manifest: Mapping[str, Any]) -> None:
    """Reads every file. Raises BU608, once for each that differs from its digest in the manifest."""
    changed = [name for name, digest in manifest["files"].items() if sha256(bundle / name, fresh=True) != digest]
    if changed:
        message = "is not the file that was compiled"
        raise BringupError(
            *(
                Diagnostic(code="BU608", message=f"`{bundle / name}` {message}", help="compile it again", file=name)
                for name in changed
            )
        )


def _absent(bundle: Path) -> BringupError:
    return fail("BU034", f"no such file or folder: `{bundle}`", help="`bringup compile` writes a bundle")


def _no_bundle(bundle: Path, error: object) -> BringupError:
    return fail("BU603", f"`{bundle}` is not a bundle: {error}", help="name the folder that `bringup compile` wrote")


def versions(more: Iterable[str] = ()) -> Iterator[tuple[str, str]]:
    """The tools that a bundle depends on, and `more`, with their versions, if installed."""
    for tool in (*_TOOLS, *more):
        try:
            yield tool, version(tool)
        except PackageNotFoundError:
            continue
