"""What a compiled module is made from."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bringup.compile.lower.iree import IreeOptions


def module_inputs(text: str, options: IreeOptions) -> dict[str, str]:
    """Of an IREE module: its MLIR, the flags, the compiler, and the processor, for which it is tuned."""
    from importlib.metadata import version

    return {
        "mlir": digest(text),
        "flags": " ".join(replace(options, dump_dir=None).flags()),
        "tools": f"iree-base-compiler {version('iree-base-compiler')}",
        "processor": processor(),
    }


@cache
def processor() -> str:
    """The processor's name and a digest of what it can do, as Linux tells them."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    facts = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return f"{facts.get('model name', 'unknown')}, {digest(facts.get('flags', facts.get('Features', '')))}"


def digest(text: str) -> str:
    """Enough of a SHA-256 to tell two texts apart; a path in them may be no UTF-8 (PEP 383)."""
    return sha256(text.encode(errors="surrogateescape")).hexdigest()[:16]
