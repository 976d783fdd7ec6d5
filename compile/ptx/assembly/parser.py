"""Parses PTX text: the directives of the module, then the body. A module has one kernel, as Triton emits it."""

from __future__ import annotations

import re

from bringup.compile.ptx.assembly.body import Body
from bringup.compile.ptx.assembly.errors import Malformed, Unsupported
from bringup.compile.ptx.assembly.kernel import BITS, Kernel, Parameter
from bringup.compile.ptx.assembly.variables import Variables, split_commas

_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
_LOCATION = re.compile(r"^[ \t]*\.loc[ \t]+(\d+)[ \t]+(\d+)[^\n]*$", re.MULTILINE)
_FILE = re.compile(r'^[ \t]*\.file[ \t]+(\d+)[ \t]+"([^"]*)"[^\n]*$', re.MULTILINE)
_TARGET = re.compile(r"^\s*\.target\s+(\w+)[^\n]*$", re.MULTILINE)
_HEADER = re.compile(r"^\s*\.(version|target|address_size)\b[^\n]*$", re.MULTILINE)
_ENTRY = re.compile(r"(?:\.(?:visible|weak)\s+)?\.entry\s+([\w$]+)\s*\(")
_SECTION = re.compile(r"\.section\s+\.?\w+\s*\{[^}]*\}")
_PARAMETER = re.compile(
    r"\.param\s+(?:\.align\s+(?P<align>\d+)\s+)?\.(?P<type>\w+)\s+"
    r"(?:\.ptr\s+(?:\.\w+\s+)?(?:\.align\s+\d+\s+)?)?(?P<name>[\w$]+)(?:\[(?P<count>\d+)\])?"
)
_LIMIT = re.compile(r"\.(?P<name>reqntid|maxnreg|minnctapersm|maxntid|noreturn)\b\s*(?P<values>[\d\s,]*)")


def parse(text: str) -> Kernel:
    """The kernel of a module. Raises Malformed if the text is not PTX, Unsupported if its PTX is not supported."""
    source = _COMMENT.sub(lambda found: "\n" * found[0].count("\n") or " ", text)
    files = {int(found[1]): found[2].rsplit("/", 1)[-1] for found in _FILE.finditer(source)}
    target = _TARGET.search(source)
    if target is None:
        raise Malformed("no .target directive", 1)
    source = _HEADER.sub(_blank, _FILE.sub(_blank, source))
    entries = list(_ENTRY.finditer(source))
    if len(entries) != 1:
        line = _line(source, entries[1].start()) if entries else 1
        raise Malformed(f"expected 1 kernel (.entry), found {len(entries)}", line)
    entry = entries[0]
    closing = source.find(")", entry.end())
    opening = source.find("{", entry.end())
    if not 0 <= closing < opening:
        raise Malformed(f"the parameters or the body of {entry[1]} are missing", _line(source, entry.start()))
    end = _closing_brace(source, opening)
    variables = Variables()
    _module_variables(source, entry.start(), variables)
    _only_sections(source, end + 1)
    kernel = Kernel(
        name=entry[1],
        target=target[1],
        parameters=_parameters(source[entry.end() : closing], _line(source, entry.end())),
        threads=_threads(source[closing + 1 : opening], _line(source, closing)),
        files=files,
    )
    body = _LOCATION.sub(r".loc \1 \2;", source[opening + 1 : end])
    Body(kernel, variables).read(body, _line(source, opening))
    kernel.shared, kernel.dynamic_offset = variables.shared, variables.dynamic_offset
    kernel.tables, kernel.local, kernel.local_bytes = variables.tables, variables.local, variables.local_bytes
    return kernel


def _blank(found: re.Match[str]) -> str:
    return "\n" * found[0].count("\n")


def _line(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


def _closing_brace(text: str, opening: int) -> int:
    depth = 0
    for found in re.compile(r"[{}]").finditer(text, opening):
        depth += 1 if found[0] == "{" else -1
        if depth == 0:
            return found.start()
    raise Malformed("this brace is not closed", _line(text, opening))


def _module_variables(source: str, end: int, variables: Variables) -> None:
    position = 0
    for statement in source[:end].split(";"):
        written = statement.strip()
        line = _line(source, position + len(statement) - len(statement.lstrip()))
        position += len(statement) + 1
        if written and position <= end and not variables.add(written):
            raise Unsupported(" ".join(written.split()), line, reason="this directive of a module")
        if written and position > end:
            raise Malformed(f"this is no directive: {' '.join(written.split())}", line)


def _only_sections(source: str, start: int) -> None:
    rest = _SECTION.sub(_blank, source[start:])
    if rest.strip():
        first = rest.strip().splitlines()[0]
        raise Unsupported(first, _line(source, source.index(first, start)), reason="after the kernel")


def _parameters(text: str, line: int) -> dict[str, Parameter]:
    """The parameter block: natural alignment, in order (PTX ISA, "Kernel Function Parameters")."""
    found: dict[str, Parameter] = {}
    offset = 0
    for written in split_commas(text):
        match = _PARAMETER.fullmatch(" ".join(written.split()))
        if match is None or match["type"] not in BITS:
            raise Malformed(f"this is no parameter: {' '.join(written.split())}", line)
        element = BITS[match["type"]] // 8
        align = int(match["align"] or element)
        offset = -(-offset // align) * align
        size = element * int(match["count"] or 1)
        found[match["name"]] = Parameter(match["name"], match["type"], offset, size)
        offset += size
    return found


def _threads(text: str, line: int) -> int:
    """The number of threads per block. Directives that limit registers or blocks have no effect here."""
    limits = {found["name"]: found["values"] for found in _LIMIT.finditer(text)}
    rest = _LIMIT.sub(" ", text).strip()
    if rest:
        raise Unsupported(rest.split()[0], line, reason="this directive of a kernel")
    sizes = [int(number) for number in limits.get("reqntid", "").replace(",", " ").split()]
    if not sizes:
        raise Unsupported(".entry", line, reason="the kernel has no .reqntid, so its block has no size")
    if any(size != 1 for size in sizes[1:]) or sizes[0] % 32:
        raise Unsupported(f".reqntid {sizes}", line, reason="only one-dimensional blocks of full warps are supported")
    return sizes[0]
