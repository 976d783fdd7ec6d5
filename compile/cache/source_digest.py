"""The source code that a result depends on: the package's own, and a model's files with all that these import.

A forward that belongs to another stage of the model is excluded from its file, so that an edit of one layer's forward
does not affect the stages of the embedding and of the head. Everything else in a file is included, comments too.

The imports of a file are read from its text. A module that a user's file loads by a computed name is included as well,
if it is in or below a folder of the model's files. Other models' files in that folder are not, although this process
has run them. Data files that the code opens itself are not included.
"""

from __future__ import annotations

import sys
import sysconfig
from collections import defaultdict
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, partial
from hashlib import sha256
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, NamedTuple

from bringup.compile.cache.engine_files import engine, family_files, name_of
from bringup.compile.cache.source_imports import imported, is_installed, loaded_below
from bringup.compile.cache.text_digests import Untrusted, digest_of

_LIBRARIES = tuple(f"{Path(sysconfig.get_path(name)).resolve()}/" for name in ("stdlib", "platstdlib"))


class Body(NamedTuple):
    """A function's body, by file and qualified name: `Block.forward`."""

    file: Path
    name: str


class _Moment(NamedTuple):
    """What `digests` has read of the package: by excluded bodies its digests, and the name and digest of each file."""

    engines: dict[frozenset[Body], dict[str, str]]
    lines: dict[str, str]


_moment: ContextVar[_Moment | None] = ContextVar("moment", default=None)


@contextmanager
def engine_read_once() -> Generator[None]:
    """In the block, `digests` looks at the package's 700 files once: for many keys of one moment. A later change of a
    file does not count until the block ends."""
    token = _moment.set(_Moment({}, {}))
    try:
        yield
    finally:
        _moment.reset(token)


def digests(files: Iterable[Path], left_out: Collection[Body] = ()) -> dict[str, str] | None:
    """The digests of the package's source code, some files, and all that these import.

    {`engine compile`: …, `source graphs/gpt2.py`: …}; of distributions `{package torch: its version}`. The package's
    files are grouped by folder; those with an excluded body are separate. None if a file cannot be read, or has changed
    since this process began: the running code may be an earlier version.
    """
    gone: defaultdict[str, set[str]] = defaultdict(set)
    for body in left_out:
        gone[str(body.file)].add(body.name)

    def digest(place: str) -> str:
        return digest_of(place, frozenset(gone.get(place, ())))

    try:
        engines, lines = _moment.get() or _Moment({}, {})
        bodies = frozenset(left_out)
        if bodies not in engines:
            engines[bodies] = _engine(digest, gone, lines)
        return engines[bodies] | _model(digest, files)
    except (OSError, ValueError, Untrusted):  # ValueError: not text, or not Python, although the process runs it
        return None


def _engine(digest: Callable[[str], str], gone: Collection[str], lines: dict[str, str]) -> dict[str, str]:
    """`lines`: of the files that were read before, to which the others are added."""
    found: dict[str, str] = {}
    for folder, files in engine().items():
        complete: list[str] = []
        for name, place in files.items():
            if place in gone:
                found[f"source {name}"] = digest(place)
                continue
            if place not in lines:
                lines[place] = f"{name} {digest_of(place)}"
            complete.append(lines[place])
        if complete:
            found[f"engine {folder}"] = sha256("\n".join(complete).encode()).hexdigest()[:16]
    return found


def _model(digest: Callable[[str], str], files: Iterable[Path]) -> dict[str, str]:
    """The digests of files that are not the engine's, and of those that they import."""
    found: dict[str, str] = {}
    seen = {file for file in (file.resolve() for file in files) if _counts(file)}
    folders = {file.parent for file in seen if not name_of(file) and not is_installed(file)}
    seen |= {file for file in loaded_below(folders, seen) if _counts(file)}
    waiting = sorted(seen)
    while waiting:
        file = waiting.pop()
        name = name_of(file)
        key = f"source {name or f'{file.parent.name}/{file.name}'}"
        found[key] = found.get(key, "") + digest(str(file))
        imports = imported(file)
        if not name:  # for the package's own files, `tools` has the distributions
            found |= imports.versions
        for place in imports.files:
            if place not in seen and _counts(place):
                seen.add(place)
                waiting.append(place)
    return found


def _counts(file: Path) -> bool:
    """Whether a file is the model's own: a family's, or one outside of the package and of Python's library."""
    name = name_of(file)
    return name in family_files() if name else is_installed(file) or not str(file).startswith(_LIBRARIES)


def files_of(kind: type) -> frozenset[Path]:
    """The files that define a class: its module's, which is missing after runpy, and those of its current methods."""
    places = {getattr(sys.modules.get(kind.__module__), "__file__", None)}
    places |= {value.__code__.co_filename for value in vars(kind).values() if isinstance(value, FunctionType)}
    return frozenset(resolved(place) for place in places if place and not place.startswith("<"))


@cache
def resolved(place: str) -> Path:
    """The file that Python gives for code, without links; it is looked up once."""
    return Path(place).resolve()


def files_behind(value: Any) -> Iterator[Path]:
    """The files of a function and of what it wraps, of a class and its bases, of another object's class."""
    if isinstance(value, partial):
        yield from files_behind(value.func)
        return
    if hasattr(value, "__wrapped__"):
        yield from files_behind(value.__wrapped__)
    function = getattr(value, "__func__", value)
    if isinstance(function, FunctionType):
        yield Path(function.__code__.co_filename).resolve()
        return
    for kind in (value if isinstance(value, type) else type(value)).__mro__:
        if not _is_builtin(kind):
            yield from files_of(kind)


def _is_builtin(kind: type) -> bool:
    return kind.__module__.partition(".")[0] in sys.stdlib_module_names


def body_of(kind: type, method: str) -> Body | None:
    """A method's body, if the class itself defines it as an ordinary function."""
    function = vars(kind).get(method)
    if not isinstance(function, FunctionType) or function.__code__.co_qualname != f"{kind.__qualname__}.{method}":
        return None
    return Body(resolved(function.__code__.co_filename), function.__code__.co_qualname)


def names_in(code: CodeType) -> Iterator[str]:
    """The globals and attributes that a function, and the functions inside it, name."""
    yield from code.co_names
    for value in code.co_consts:
        if isinstance(value, CodeType):
            yield from names_in(value)
