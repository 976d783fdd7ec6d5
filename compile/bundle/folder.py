"""The result of a compile: a folder with a manifest, programs, weights and tokenizer.

It is written next to its place and moved there in one step, so that a bundle is always complete.
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

from bringup.compile.bundle.manifest import read_form
from bringup.diagnostics import BringupError, Diagnostic, fail
from bringup.graphs.registry import is_registered
from bringup.progress import Progress, Silent
from bringup.system.atomic import exchange, flush, flush_tree, sha256, write_file
from bringup.system.lock import locked, sibling_path
from bringup.system.os_errors import refusals, unwritable
from bringup.system.signals import signals_deferred

SCHEMA = 7
MANIFEST = "manifest.json"
WEIGHTS = "weights.safetensors"
TOKENIZER = "tokenizer"
PARITY = "parity.json"  # what `verify` found: written after sealing, so that the manifest does not list it
_TOOLS = ("bringup", "torch", "torch-mlir", "iree-base-compiler", "iree-base-runtime", "numpy")


def refuse(out: Path, *, force: bool, note: str = MANIFEST) -> None:
    """Raises BU011 when `out` exists and `force` is not set, BU012 when it exists and is no bundle.

    `note` is the file that shows what a folder is: of other folders that bringup writes, such as `convert`'s, another.
    A link stands for what it leads to. The working directory and those above it are no place for a bundle: BU012.
    Raises BU901 where the folders above take no bundle, as far as that shows before anything is written.
    """
    place = _resolved(out)
    if Path.cwd().is_relative_to(place):
        raise fail("BU012", f"`{out}` is the working directory or one above it", help="choose another name with -o")
    if place.exists():
        if not (place / note).is_file():
            kind = "a bundle" if note == MANIFEST else f"a folder that this command wrote: it has no {note}"
            raise fail("BU012", f"`{out}` exists and is not {kind}", help="choose another name with -o")
        if not force:
            raise fail("BU011", f"`{out}` exists", help="replace it with --force, or choose another name with -o")
    above = next(folder for folder in place.parents if folder.exists())
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        why = "takes no files from this user" if above.is_dir() else "is no folder"
        raise fail("BU901", f"cannot write `{out}`: `{above}` {why}", help="choose another place with -o")


def has_inputs_key(out: Path, key: str) -> bool:
    """Whether the manifest of a bundle at `out` has this key of its inputs."""
    try:
        return bool(key) and read_manifest(out).get("inputs_key") == key
    except BringupError:
        return False


def _resolved(out: Path) -> Path:
    """`out` with no link and no `..` left, so that it has a name and a folder to stand in."""
    try:
        return out.resolve()
    except (OSError, RuntimeError) as error:  # RuntimeError: a loop of links, up to Python 3.12
        raise fail("BU012", f"`{out}` leads nowhere: {error}", help="choose another name with -o") from error


@contextmanager
def writing(
    out: Path, *, force: bool = True, progress: Progress | None = None, note: str = MANIFEST
) -> Generator[Path]:
    """A fresh folder that takes the place of `out` when the block ends well, and vanishes when it does not.

    No other process writes to `out` meanwhile: it waits, or this one does.
    Raises BU011 and BU012 as `refuse` does, BU013, and for what the machine refuses, in the block too, BU901 to BU903.
    """
    place = _resolved(out)
    folder = sibling_path(place, "part")
    with _folders(place.parent), locked(place, progress or Silent()), refusals(place):
        _recover(place)
        refuse(out, force=force, note=note)  # who had the lock before may have put a bundle there
        try:
            _make(folder)
            yield folder
            _flush(folder)
            refuse(out, force=True, note=note)  # something else may have come to stand there meanwhile
            with signals_deferred():
                _put(folder, place)
        except OSError as error:
            if error.filename and Path(os.fsdecode(error.filename)).is_relative_to(folder):
                raise unwritable(error, Path(os.fsdecode(error.filename))) from error
            raise
        finally:
            with signals_deferred():
                _recover(place)  # after an exchange, `folder` is what stood there before


def _recover(place: Path) -> None:
    """Removes what the last writer left next to `place`; restores a bundle that it had moved away."""
    old = sibling_path(place, "old")
    if old.exists() and not place.exists():
        old.rename(place)
    for path in (old, sibling_path(place, "part")):
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def _folders(parent: Path) -> Generator[None]:
    """Creates the folders above a bundle; those that stay empty are removed again."""
    lacking = [folder for folder in (parent, *parent.parents) if not folder.exists()]
    try:
        if lacking:
            _make(parent)
        yield
    finally:
        for folder in lacking:
            with suppress(OSError):
                folder.rmdir()


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(error, folder) from error


def _flush(folder: Path) -> None:
    try:
        flush_tree(folder)
    except OSError as error:
        raise unwritable(error, folder) from error


def _put(folder: Path, place: Path) -> None:
    """Moves a finished folder to its name, on the disk too; exchanges the two in one step where something stands there.

    What stood there is removed only when the new name is on the disk: a power cut leaves the one or the other.
    """
    try:
        exchanged = place.exists() and exchange(folder, place)
        if not exchanged:
            if place.exists():  # no exchange here: a moment without the bundle, never half of one
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
    """Tells whether the folder of that name is still the one that it was at the block's beginning. Raises BU034,
    BU603.

    The folder is held open meanwhile, so that no later one gets its inode.
    """
    try:
        descriptor = os.open(bundle, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise fail("BU034", f"no such file or folder: `{bundle}`", help="`bringup compile` makes a bundle") from error
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL
        raise _no_bundle(bundle, error) from error

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
    """The manifest of a bundle. Raises BU603 when there is none that this version can read."""
    try:
        manifest = read_form(bundle / MANIFEST, SCHEMA)
    except (ValueError, BringupError) as error:
        raise _no_bundle(bundle, error.findings[0].message if isinstance(error, BringupError) else error) from error
    missing = [name for name in manifest["files"] if not (bundle / name).is_file()]
    if missing:
        raise fail("BU603", f"`{bundle}` lacks `{missing[0]}`", help="compile it again")
    return manifest


def bundle_of(word: str | os.PathLike[str]) -> Path | None:
    """The bundle that a word names; None for a model's name, whatever folder is called so, and where no bundle is.

    A bundle of a model's name is written as a path: `./gpt2`, or `Path("gpt2")`.
    """
    folder = Path(word)
    if not (folder / MANIFEST).is_file() or (isinstance(word, str) and is_registered(word)):
        return None
    return folder


def check_files(bundle: Path, manifest: Mapping[str, Any]) -> None:
    """Reads every file. Raises BU608, once for each that is not the one its manifest describes."""
    changed = [name for name, digest in manifest["files"].items() if sha256(bundle / name, fresh=True) != digest]
    if changed:
        message = "is not the file that was compiled"
        raise BringupError(
            *(
                Diagnostic(code="BU608", message=f"`{bundle / name}` {message}", help="compile it again", file=name)
                for name in changed
            )
        )


def _no_bundle(bundle: Path, error: object) -> BringupError:
    return fail("BU603", f"`{bundle}` is not a bundle: {error}", help="`bringup compile` makes one")


def versions(more: Iterable[str] = ()) -> Iterator[tuple[str, str]]:
    """The tools that a bundle depends on, and `more`, with their versions, as far as they are installed."""
    for tool in (*_TOOLS, *more):
        try:
            yield tool, version(tool)
        except PackageNotFoundError:
            continue
