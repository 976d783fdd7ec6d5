"""The processor, an input of results that are tuned for it."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from bringup.compile.cache.text_digests import digest


@cache
def processor() -> str:
    """The processor's name and a digest of its features, from Linux's /proc/cpuinfo."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    facts = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return f"{facts.get('model name', 'unknown')}, {digest(facts.get('flags', facts.get('Features', '')))}"
