"""The result of a compile: a folder with a manifest, programs, weights and tokenizer.

It is written beside its place and put there in one step, so that a bundle of that name is always whole.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, cast

from bringup.diagnostics import BringupError, Diagnostic, fail

SCHEMA = 1
MANIFEST = "manifest.json"
WEIGHTS = "weights.safetensors"
TOKENIZER = "tokenizer"
_TOOLS = ("bringup", "torch", "torch-mlir", "iree-base-compiler", "iree-base-runtime", "numpy")


def refuse(out: Path, *, force: bool) -> None:
    """Raises BU011 when `out` exists and `force` is not set, BU012 when it exists and is no bundle.

    A link stands for what it leads to. The working directory and those above it are no place for a bundle: BU012.
    """
    place = _resolved(out)
    if Path.cwd().is_relative_to(place):
        raise fail("BU012", f"`{out}` is the working directory or one above it", help="choose another name with -o")
    if place.exists():
        if not (place / MANIFEST).is_file():
            raise fail("BU012", f"`{out}` exists and is not a bundle", help="choose another name with -o")
        if not force:
            raise fail("BU011", f"`{out}` exists", help="replace it with --force, or choose another name with -o")


def _resolved(out: Path) -> Path:
    """`out` with no link and no `..` left, so that it has a name and a folder to stand in."""
    try:
        return out.resolve()
    except (OSError, RuntimeError) as error:  # RuntimeError: a loop of links, up to Python 3.12
        raise fail("BU012", f"`{out}` leads nowhere: {error}", help="choose another name with -o") from error


@contextmanager
def writing(out: Path) -> Generator[Path, None, None]:
    """A fresh folder that takes the place of `out` when the block ends well, and vanishes when it does not."""
    place = _resolved(out)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f".{place.name[:100]}.", dir=place.parent))
    except OSError as error:
        raise fail("BU901", f"cannot write beside `{out}`: {error.strerror}") from error
    try:
        yield folder
        folder.chmod(0o755)
        refuse(out, force=True)  # something else may have come to stand there meanwhile
        _put(folder, place)
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # after an exchange, this is what stood there before


def _put(folder: Path, out: Path) -> None:
    """Moves a finished folder to its name; exchanges the two in one step where something stands there."""
    if not out.exists():
        folder.rename(out)
        return
    libc = ctypes.CDLL(None, use_errno=True)
    at_cwd, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE of <linux/fs.h>
    paths = at_cwd, os.fsencode(folder), at_cwd, os.fsencode(out)
    done = hasattr(libc, "renameat2") and libc.renameat2(*paths, exchange) == 0
    if not done:  # a file system without exchange: a moment without the bundle, never half of one
        old = folder.with_name(f"{folder.name}.old")
        out.rename(old)
        try:
            folder.rename(out)
        except OSError:
            old.rename(out)
            raise
        shutil.rmtree(old)


def seal(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Writes the manifest, with the tools' versions and the SHA-256 of every file."""
    files = {str(p.relative_to(folder)): _sha256(p) for p in sorted(folder.rglob("*")) if p.is_file()}
    whole = {"schema": SCHEMA, **manifest, "tools": dict(_versions()), "files": files}
    (folder / MANIFEST).write_text(json.dumps(whole, indent=2) + "\n", "utf-8")


def read_manifest(bundle: Path) -> dict[str, Any]:
    """The manifest of a bundle. Raises BU603 when there is none that this version can read."""
    try:
        manifest = _object((bundle / MANIFEST).read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise fail("BU603", f"`{bundle}` is not a bundle: {error}", help="`bringup compile` makes one") from error
    if manifest.get("schema") != SCHEMA:
        raise fail("BU603", f"`{bundle}` has a manifest of another schema than {SCHEMA}", help="compile it again")
    missing = [name for name in manifest["files"] if not (bundle / name).is_file()]
    if missing:
        raise fail("BU603", f"`{bundle}` lacks `{missing[0]}`", help="compile it again")
    return manifest


def check_files(bundle: Path, manifest: Mapping[str, Any]) -> None:
    """Reads every file. Raises BU608, once for each that is not the one its manifest describes."""
    changed = [name for name, digest in manifest["files"].items() if _sha256(bundle / name) != digest]
    if changed:
        said = "is not the file that was compiled"
        raise BringupError(
            *(
                Diagnostic(code="BU608", message=f"`{bundle / name}` {said}", help="compile it again", file=name)
                for name in changed
            )
        )


def _object(text: str) -> dict[str, Any]:
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError("its manifest is no JSON object")
    return cast("dict[str, Any]", found)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _versions() -> Iterator[tuple[str, str]]:
    for tool in _TOOLS:
        try:
            yield tool, version(tool)
        except PackageNotFoundError:
            continue
