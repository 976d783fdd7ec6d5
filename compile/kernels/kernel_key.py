"""The inputs of a compiled kernel, which are its key in the compile cache."""

from __future__ import annotations

import ast
import json
import subprocess
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from bringup.compile.cache.engine_files import name_of, tools
from bringup.compile.cache.text_digests import Untrusted, digest_of, parsed
from bringup.compile.kernels import source
from bringup.compile.kernels.call import Kernel
from bringup.compile.kernels.compiled import kernel_to_json

KIND = "kernel"
FOLDER = Path(source.__path__[0]).resolve()
_COMPILER = ("worker.py", "compiled.py", "call.py")  # of compile/kernels: they determine Triton's options and fields


def inputs_of(kernel: Kernel, capability: str) -> Mapping[str, str] | None:
    """The inputs, by name. None if a source file may differ from the running code, so that nothing may be cached."""
    try:
        files = [*_sources(_file(kernel.stem)), *(FOLDER.parent / name for name in _COMPILER)]
        digests = {f"source {name_of(file)}": digest_of(file) for file in sorted(set(files))}
    except (OSError, ValueError, Untrusted):
        return None
    settings = json.dumps(kernel_to_json(kernel), sort_keys=True)
    return digests | {"kernel": settings, "capability": capability, "tools": tools(("triton",)), "ptxas": _ptxas()}


def _sources(file: Path) -> list[Path]:
    """A kernel's file, and the files in `source` that it imports, directly or indirectly."""
    found, left = {file}, [file]
    while left:
        near = {path for path in _imported(left.pop()) if path.is_file()} - found
        found |= near
        left += near
    return sorted(found)


def _imported(file: Path) -> Iterator[Path]:
    """The files in `source` that a file imports, by name: Python's search for a module may import Triton."""
    for node in ast.walk(parsed(file)[1]):
        if isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith(f"{source.__name__}."):
            names = [str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)]
            yield from (_file(name.removeprefix(source.__name__).lstrip(".")) for name in names)


def _file(stem: str) -> Path:
    return FOLDER / f"{stem.replace('.', '/')}.py"


@cache
def _ptxas() -> str:
    """The versions of the NVIDIA assemblers that Triton includes. The worker uses no others."""
    spec = find_spec("triton")
    if spec is None or spec.origin is None:
        return ""
    found = sorted((Path(spec.origin).parent / "backends" / "nvidia" / "bin").glob("ptxas*"))
    versions = [
        subprocess.run([tool, "--version"], capture_output=True, text=True, check=True).stdout for tool in found
    ]
    return "; ".join(text.strip().splitlines()[-1] for text in versions)
