"""`bringup doctor`: what is installed here, and how to get what is not."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import click

from bringup import __version__
from bringup.cli.packages import PACKAGES
from bringup.render.words import table

_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")


@click.command("doctor")
def command() -> None:
    """Show versions, caches and settings. Imports none of the packages that it names."""
    python = f"{platform.python_version()} on {platform.platform()}"
    installed = [(p.name, _version(p.name) or f"missing; {p.install}") for p in PACKAGES]
    parts = ([("bringup", __version__), ("python", python)], installed, _surroundings())
    print("\n\n".join(table(part) for part in parts))


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _surroundings() -> list[tuple[str, str]]:
    from bringup.adapters.readers.cache import cache_folder, hub_cache

    flags = [name for name in _OFFLINE if os.environ.get(name, "").upper() in ("1", "ON", "YES", "TRUE")]
    return [
        ("cache", _there(cache_folder("").resolve())),
        ("hugging face cache", _there(hub_cache())),
        ("offline", f"yes, by {flags[0]}" if flags else "no"),
        ("processors", str(os.cpu_count())),
        ("nvidia driver", "present" if Path("/proc/driver/nvidia/version").exists() else "none"),
    ]


def _there(folder: Path) -> str:
    return str(folder) if folder.is_dir() else f"{folder} (not there yet)"
