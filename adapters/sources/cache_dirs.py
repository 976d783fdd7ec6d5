"""The folders of downloads."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder(kind: str) -> Path:
    """bringup's own cache: $XDG_CACHE_HOME/bringup/KIND, or ~/.cache/bringup/KIND."""
    return _cache_home() / "bringup" / kind


def hub_cache() -> Path:
    """The Hugging Face cache, by the rules of `huggingface_hub.constants`: HF_HUB_CACHE, else HF_HOME/hub."""
    if chosen := os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE"):
        return Path(chosen).expanduser()
    home = os.environ.get("HF_HOME")
    return (Path(home).expanduser() if home else _cache_home() / "huggingface") / "hub"


def _cache_home() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
