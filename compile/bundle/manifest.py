"""Validates the manifest of a bundle before it is used: a bundle may be untrusted."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Any, cast

from bringup.adapters.checkpoints.bounded_json import MAX_DEPTH, read_json
from bringup.compile.program.program import EntryPoint
from bringup.diagnostics import BringupError, fail
from bringup.graphs.core.step import BLOCK
from bringup.grouping import some
from bringup.spec import DTYPES
from bringup.system.atomic import sha256
from bringup.system.os_errors import reason, refused

AGAIN = "copy the bundle again, or compile it again"
MOST = 1 << 31  # of tokens, blocks and sizes
KINDS = ("paged", "ring", "sequence", "lora")  # of states

# A form is a type, None, a list of one form, a tuple of alternatives, or an object: by key, or of any keys under "*".
VALUE = {"shape": [int], "dtype": str}
TENSOR = {"name": str, "shape": [int], "dtype": str}
STATE = TENSOR | {"kind": str}
FUNCTION = {"name": str, "weights": [str], "states": [str], "values": [VALUE], "results": [VALUE], "updates": [str]}
CALL = {"function": str, "prefix": str, "inputs": [int], "borrowed": {"*": str}}
ENTRY = {
    "name": str,
    "num_tokens": int,
    "num_sequences": int,
    "decode": bool,
    "contiguous": bool,
    "proposals": bool,
    "calls": [CALL],
    "outputs": {"*": int},
    "inputs": [TENSOR],
}
FORM: dict[str, Any] = {
    "target": str,
    "target_package": str,
    "target_options": {"*": str},
    "model_argument": (str, None),
    "model": str,
    "adapter": (str, None),
    "allow": ({"*": str}, None),
    "dtype": str,
    "graph_options": dict,
    "max_seq_len": int,
    "max_input_len": (int, None),
    "vocab_size": int,
    "recompute_lengths": [int],
    "states_vary_past": (int, None),
    "main_states": ([(int, str)], None),
    "weights": str,
    "weights_form": str,
    "provenance": {"source": str, "also": ([{"source": str, "prefix": str}], None)},
    "config": dict,
    "aliases": {"*": str},
    "files": {"*": str},
    "interface": {
        "functions": [FUNCTION],
        "entries": [ENTRY],
        "weights": [TENSOR],
        "states": [STATE],
        "max_blocks": int,
        "all_logits": bool,
        "block_size": int,
        "num_blocks": int,
        "num_rows": int,
        "rewindable": (int, None),
    },
}
WORDS = {str: "text", int: "an integer", bool: "true or false", dict: "an object", None: "null"}


class OtherSchemaError(ValueError):
    """A manifest that another version of bringup wrote."""


def read_form(path: Path, schema: int) -> dict[str, Any]:
    """A manifest of this schema. Raises ValueError for missing or invalid keys, BU233 for an unreadable file."""
    try:
        manifest = read_json(path, deep=MAX_DEPTH + 1)  # one level more than the config in it
    except ValueError as error:
        raise ValueError(f"`manifest.json` is not readable: {error}") from None
    found = manifest.get("schema")
    if type(found) is not int:
        raise ValueError("`manifest.json` has no schema")
    if found != schema:
        raise OtherSchemaError(f"`manifest.json` has schema {found:,}, and this version reads {schema}")
    for wrong in chain(_misfits(manifest, FORM, ""), _nonsense(manifest)):
        raise ValueError(f"in `manifest.json`, {wrong}")
    return manifest


@contextmanager
def program_of(bundle: Path, files: Mapping[str, str]) -> Generator[None]:
    """Loads a bundle's program in this block. Raises BU603 if its files are not a program, BU903 without memory.

    `files` are the digests in the manifest. After an error the files, except the weights, are compared with them: the
    message names a damaged one, which may raise any error in the code that reads it.
    """
    try:
        yield
    except (OSError, ValueError, RuntimeError, LookupError, TypeError, AttributeError, BringupError) as error:
        if known := refused(error):
            raise known from error
        why = error.findings[0].message if isinstance(error, BringupError) else reason(error).partition("\n")[0]
        message = f"the program of `{bundle}` cannot be loaded: {why}"
        if names := [name for name, digest in files.items() if _is_damaged(bundle / name, digest)]:
            message += f"; {some(names)} {'is' if len(names) == 1 else 'are'} damaged"
            raise fail("BU603", message, help=AGAIN, file=str(bundle / names[0])) from error
        if isinstance(error, TypeError | AttributeError | BringupError):
            raise
        help = f"its files are those of the compile: is it of another machine? {AGAIN}"
        raise fail("BU603", message, help=help) from error


def _is_damaged(file: Path, digest: str) -> bool:
    """Whether a file of a program has another digest. Weights, which may be large, are not read."""
    try:
        return file.suffix != ".safetensors" and sha256(file, fresh=True) != digest
    except OSError:
        return False


def _misfits(value: Any, form: Any, place: str) -> Iterator[str]:
    """The errors of a value compared with its form."""
    if isinstance(form, tuple):
        forms = cast("tuple[Any, ...]", form)
        if all(list(_misfits(value, one, place)) for one in forms):
            yield from _misfits(value, forms[0], place)
    elif isinstance(form, list) and type(value) is list:
        for index, item in enumerate(cast("list[Any]", value)):
            yield from _misfits(item, form[0], f"{place}[{index}]")
    elif isinstance(form, dict) and type(value) is dict:
        given, named = cast("dict[str, Any]", value), cast("dict[str, Any]", form)
        whole = dict.fromkeys(given, named["*"]) if "*" in named else named
        for key, inner in whole.items():
            yield from _misfits(given.get(key), inner, f"{place}.{key}" if place else key)
    elif value is not None if form is None else type(value) is not form:
        wanted = "a list" if isinstance(form, list) else "an object" if isinstance(form, dict) else WORDS[form]
        yield f"`{place}` is not {wanted}"


def _nonsense(manifest: Mapping[str, Any]) -> Iterator[str]:
    """The errors of a manifest whose values have the right form but cannot be used."""
    interface = manifest["interface"]
    counts = {key: manifest[key] for key in ("max_seq_len", "vocab_size")}
    counts |= {key: interface[key] for key in ("max_blocks", "block_size", "num_blocks", "num_rows")}
    for size in ("num_tokens", "num_sequences"):
        counts |= {f"{size} of {entry['name']}": entry[size] for entry in interface["entries"]}
    counts |= {"max_input_len": manifest.get("max_input_len") or 1}
    counts |= {"states_vary_past": manifest["states_vary_past"] or 1, "rewindable": (interface["rewindable"] or 0) + 1}
    yield from (f"`{key}` is {count}" for key, count in counts.items() if not 1 <= count < MOST)
    for name in manifest["files"]:
        if not _inside(name):
            yield f"`files` names `{name}`, which is not in the bundle"
    inputs = (tensor for entry in interface["entries"] for tensor in entry["inputs"])
    for tensor in (*interface["weights"], *interface["states"], *inputs):
        if DTYPES.get(tensor["dtype"]) is None or DTYPES[tensor["dtype"]].block:
            yield f"`{tensor['name']}` has dtype `{tensor['dtype']}`"
        if not all(0 <= size < MOST for size in tensor["shape"]):
            yield f"`{tensor['name']}` has an impossible shape"
    functions = {function["name"] for function in interface["functions"]}
    yield from (f"a function is called `{name}`" for name in functions if "/" in name or not _inside(name))  # its file
    for entry in interface["entries"]:
        unknown = [call["function"] for call in entry["calls"] if call["function"] not in functions]
        yield from (f"`{entry['name']}` calls `{name}`, which does not exist" for name in unknown)
        if any(index < 0 for call in entry["calls"] for index in call["inputs"]):
            yield f"`{entry['name']}` has a call with a negative input"
        if "logits" not in entry["outputs"] or min(entry["outputs"].values()) < 0:
            yield f"`{entry['name']}` does not return logits"
    yield from (
        f"`main_states` has `{s}`" for s in manifest.get("main_states") or () if s != "middle" and type(s) is str
    )
    yield from _wrong_entries(interface)
    yield from _wrong_states(interface, manifest["max_seq_len"])


def _wrong_entries(interface: Mapping[str, Any]) -> Iterator[str]:
    """The errors of entries that are not those of a layout, or whose states are too small."""
    sizes = ("num_tokens", "num_sequences", "decode", "contiguous", "proposals")
    points = {entry["name"]: EntryPoint(**{key: entry[key] for key in sizes}) for entry in interface["entries"]}
    single = [point for point in points.values() if point.num_sequences == 1]
    named = all(name == point.point_name for name, point in points.items())
    if not named or len(points) != len(interface["entries"]) or {point.decode for point in single} != {False, True}:
        yield "the entry points are not `decode` and one `prefill_N` for each length N, alike for several sequences"
    if any(point.decode and point.num_tokens != point.num_sequences for point in points.values()):
        yield "an entry for decode does not have one token for each sequence"
    sequences, blocks = interface["num_rows"] - 1, interface["num_blocks"] - 1
    if any(point.num_sequences > sequences for point in points.values()) or blocks < interface["max_blocks"]:
        yield "the states have no room for the sequences of the entry points"
    if interface["block_size"] != BLOCK:
        yield f"`block_size` is {interface['block_size']}, and cache blocks have {BLOCK} rows"


def _wrong_states(interface: Mapping[str, Any], max_seq_len: int) -> Iterator[str]:
    """The errors of states that lack rows that a step may write."""
    if max_seq_len > interface["max_blocks"] * BLOCK:
        yield f"`max_seq_len` is {max_seq_len}, and a sequence has {interface['max_blocks']} blocks"
    for state in interface["states"]:
        if state["kind"] not in KINDS:
            yield f"the state `{state['name']}` is neither of {', '.join(KINDS)}"
        elif not _has_room(state, interface["num_blocks"], interface["num_rows"]):
            yield f"the state `{state['name']}` has no room for the blocks and sequences of the interface"


def _has_room(state: Mapping[str, Any], num_blocks: int, num_rows: int) -> bool:
    """Whether a state has every row that a step may write."""
    rows = state["shape"][0] if state["shape"] else 0
    if state["kind"] == "lora":
        return rows > 0 and len(state["shape"]) in (3, 4)
    if state["kind"] == "ring":
        return rows > 0 and rows % (num_rows * BLOCK) == 0
    return rows >= (num_blocks * BLOCK if state["kind"] == "paged" else num_rows)


def _inside(name: str) -> bool:
    """Whether a path is inside of its folder."""
    path = PurePosixPath(name)
    safe = not path.is_absolute() and ".." not in path.parts and "\0" not in name
    return safe and 0 < len(path.parts) < 10 and all(len(part.encode()) < 256 for part in path.parts)
