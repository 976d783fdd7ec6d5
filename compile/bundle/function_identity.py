"""The identity of a function as text: its source, its closure, and the names of its module that it uses."""

from __future__ import annotations

import ast
import inspect
import sys
import sysconfig
import textwrap
from collections.abc import Collection, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache, partial
from hashlib import sha256
from pathlib import Path, PurePath
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, cast

from bringup.compile.cache.engine_files import name_of
from bringup.compile.cache.source_digest import names_in
from bringup.compile.cache.source_imports import is_installed

_PLAIN = (bool, int, float, complex, str, bytes, range, PurePath, type(None), type(Ellipsis))
_PYTHON = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib")})


def identity_of(value: object) -> str:
    """A digest that is equal, in every process, for equal functions and settings, and differs if they differ in these.

    For functions it covers the source without comments, defaults, closures, and the functions and constants of the same
    module that they name; in files of users also all other data, and functions of their other files. For dataclasses
    it covers every field, for other objects of a user's class every attribute. Numbers are exact. Other objects are
    identified by type: they are not settings of an adapter.
    """
    return sha256(_text(value, {}).encode()).hexdigest()[:32]


def _text(value: object, seen: dict[int, tuple[int, object]]) -> str:
    """`seen`: the objects that the text contains already, by id, with their number, so that cycles end."""
    if isinstance(value, _PLAIN):
        return f"{type(value).__qualname__} {value!r}"
    if isinstance(value, type | ModuleType | BuiltinFunctionType):
        return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', value.__name__)}"
    if id(value) in seen:
        return f"again {seen[id(value)][0]}"
    if not issubclass(type(value), tuple | frozenset):  # equal ones may or may not be the same object
        seen[id(value)] = len(seen), value
    return f"{type(value).__module__}.{type(value).__qualname__}({', '.join(_parts(value, seen))})"


def _parts(value: object, seen: dict[int, tuple[int, object]]) -> Iterator[str]:
    if isinstance(value, FunctionType):
        yield from _of_function(value, seen)
    elif isinstance(value, MethodType):
        yield from (_text(part, seen) for part in (value.__func__, value.__self__))
    elif isinstance(value, partial):
        held = cast("partial[Any]", value)
        yield from (_text(part, seen) for part in (held.func, held.args, held.keywords))
    elif type(value).__module__ == "functools" and "__wrapped__" in vars(value):  # of @cache
        yield _text(vars(value)["__wrapped__"], seen)
    elif isinstance(value, tuple | list):
        yield from (_text(part, seen) for part in cast("tuple[object, ...]", value))
    elif isinstance(value, set | frozenset):
        yield from sorted(_text(part, dict(seen)) for part in cast("set[object]", value))
    elif isinstance(value, Mapping):
        yield from (_text(pair, seen) for pair in cast("Mapping[object, object]", value).items())
    elif type(value).__module__ == "numpy" and hasattr(value, "tobytes"):
        array: Any = value
        yield f"{array.dtype} {array.shape} {sha256(array.tobytes()).hexdigest()}"
    else:
        yield from _of_object(value, seen)


def _of_object(value: object, seen: dict[int, tuple[int, object]]) -> Iterator[str]:
    if type(value).__module__.partition(".")[0] in sys.stdlib_module_names:
        return
    call = vars(type(value)).get("__call__")
    if isinstance(call, FunctionType):
        yield _text(call, seen)
    if is_dataclass(value):
        yield from (_text((field.name, getattr(value, field.name)), seen) for field in fields(value))
    elif hasattr(value, "__dict__"):
        yield from (_text(pair, seen) for pair in vars(value).items())
    yield str(getattr(value, "__name__", ""))  # numpy's functions have no other identity


def _of_function(function: FunctionType, seen: dict[int, tuple[int, object]]) -> Iterator[str]:
    code = function.__code__
    yield f"{function.__module__}.{function.__qualname__}"
    yield _source(code)
    yield _text((function.__defaults__, function.__kwdefaults__), seen)
    wrapped = getattr(function, "__wrapped__", None)
    if wrapped is not None:
        yield _text(wrapped, seen)
    for cell in function.__closure__ or ():
        try:
            yield _text(cell.cell_contents, seen)
        except ValueError:  # a name that is not bound yet
            yield "empty"
    names = dict.fromkeys(names_in(code))
    for name in names:
        found: object = function.__globals__.get(name)
        if _of_users(code.co_filename):
            yield from _of_global(name, found, names, seen)
        elif _is_own(found, function) or isinstance(found, (*_PLAIN, tuple, list, dict)):
            yield f"{name}: {_text(cast('object', found), seen)}"


def _is_own(found: object, function: FunctionType) -> bool:
    return isinstance(found, FunctionType) and found.__module__ == function.__module__


def _of_global(name: str, found: object, names: Collection[str], seen: dict[int, tuple[int, object]]) -> Iterator[str]:
    """A global of a user's file that a function with these names may read: data, which may come from any file, and
    other functions of users, also by the name of their module.

    The source of a class is part of the digests of files.
    """
    if found is None:
        return
    if isinstance(found, ModuleType):
        if id(found) not in seen and _of_users(str(vars(found).get("__file__", ""))):
            seen[id(found)] = len(seen), found
            for inner in names:
                yield from _of_global(f"{name}.{inner}", vars(found).get(inner), names, seen)
    elif isinstance(found, FunctionType):
        if _of_users(found.__code__.co_filename):
            yield f"{name}: {_text(found, seen)}"
    elif not isinstance(found, type | BuiltinFunctionType):
        yield f"{name}: {_text(found, seen)}"


@cache
def _of_users(file: str) -> bool:
    """Whether a source file belongs to neither this package, nor Python, nor an installed package."""
    path = Path(file)
    return path.is_file() and not (is_installed(path) or file.startswith(_PYTHON) or name_of(path.resolve()))


@cache
def _source(code: CodeType) -> str:
    """Its text without comments and spacing; without a text, the compiled code."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(code)))
    except (OSError, TypeError, SyntaxError, ValueError):
        return _compiled(code)
    if code.co_name != "<lambda>":
        return ast.unparse(tree)
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Lambda)]
    return ast.unparse(found[0]) if len(found) == 1 else _compiled(code)


def _compiled(code: CodeType) -> str:
    constants = [_compiled(value) if isinstance(value, CodeType) else _text(value, {}) for value in code.co_consts]
    return repr((code.co_code, code.co_names, code.co_varnames, constants))
