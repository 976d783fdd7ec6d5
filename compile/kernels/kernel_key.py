"""The inputs of a compiled kernel."""

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
_COMPILER = ("worker.py", "compiled.py", "call.py")  # of compile/kernels: they choose Triton's options and our fields


def inputs_of(kernel: Kernel, capability: str) -> Mapping[str, str] | None:
    """The inputs by name. None where a source file may not be what runs here, so that nothing may be cached."""
    try:
        files = [*_sources(_file(kernel.stem)), *(FOLDER.parent / name for name in _COMPILER)]
        digests = {f"source {name_of(file)}": digest_of(file) for file in sorted(set(files))}
    except (OSError, ValueError, Untrusted):
        return None
    settings = json.dumps(kernel_to_json(kernel), sort_keys=True)
    return digests | {"kernel": settings, "capability": capability, "tools": tools(("triton",)), "ptxas": _ptxas()}


def _sources(file: Path) -> list[Path]:
    """A kernel's file, and those of the same folder that it imports, and these import."""
    found, left = {file}, [file]
    while left:
        near = {path for path in _imported(left.pop()) if path.is_file()} - found
        found |= near
        left += near
    return sorted(found)


def _imported(file: Path) -> Iterator[Path]:
    """By their names alone: to find a module as Python does may import the package around it, here one with Triton."""
    for node in ast.walk(parsed(file)[1]):
        if isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith(f"{source.__name__}."):
            names = [str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)]
            yield from (_file(name.removeprefix(source.__name__).lstrip(".")) for name in names)


def _file(stem: str) -> Path:
    return FOLDER / f"{stem.replace('.', '/')}.py"


@cache
def _ptxas() -> str:
    """The versions of NVIDIA's assemblers that Triton has with it; the worker uses no others."""
    spec = find_spec("triton")
    if spec is None or spec.origin is None:
        return ""
    found = sorted((Path(spec.origin).parent / "backends" / "nvidia" / "bin").glob("ptxas*"))
    versions = [
        subprocess.run([tool, "--version"], capture_output=True, text=True, check=True).stdout for tool in found
    ]
    return "; ".join(text.strip().splitlines()[-1] for text in versions)
