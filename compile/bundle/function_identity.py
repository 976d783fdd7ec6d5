"""The identity of a function as text: its source, its closure, and the names of its module that it uses."""

from __future__ import annotations

import ast
import builtins
import inspect
import sys
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache, partial
from hashlib import sha256
from pathlib import PurePath
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, cast

from bringup.compile.cache.source_digest import names_in

_PLAIN = (bool, int, float, complex, str, bytes, range, PurePath, type(None), type(Ellipsis))


def identity_of(value: object) -> str:
    """A digest that is equal, in every process, for equal functions and settings, and differs if they differ in these.

    For functions it covers the source without comments, defaults, closures, and the functions and constants of the same
    module that they name. For dataclasses it covers every field, for other objects of a user's class every attribute.
    Numbers are exact. Other objects are identified by type: they are not settings of an adapter.
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
    for name in dict.fromkeys(names_in(code)):
        found: object = function.__globals__.get(name)
        if found is None or hasattr(builtins, name):
            continue
        own = isinstance(found, FunctionType) and found.__module__ == function.__module__
        if own or isinstance(found, (*_PLAIN, tuple, list, dict)):
            yield f"{name}: {_text(cast('object', found), seen)}"


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
