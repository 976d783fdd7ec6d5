"""The cache key of a compiled module."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from bringup.compile.cache.engine_files import tools
from bringup.compile.cache.source_digest import digests

if TYPE_CHECKING:
    from bringup.compile.targets.iree_compiler import IreeOptions


def module_inputs(text: str, options: IreeOptions) -> dict[str, str] | None:
    """Of an IREE module: its MLIR, the flags, the compiler, this package, and the processor, for which it is tuned.

    None where the package's source code cannot be told.
    """
    sources = digests(())
    if sources is None:
        return None
    return {
        "mlir": digest(text),
        "flags": " ".join(replace(options, dump_dir=None).flags()),
        "tools": tools(("iree-base-compiler",)),
        "processor": processor(),
        **sources,
    }


@cache
def processor() -> str:
    """The processor's name and a digest of what it can do, as Linux tells them."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    facts = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return f"{facts.get('model name', 'unknown')}, {digest(facts.get('flags', facts.get('Features', '')))}"


def digest(text: str) -> str:
    """Of a text; a path in it may be no UTF-8 (PEP 383)."""
    return sha256(text.encode(errors="surrogateescape")).hexdigest()
