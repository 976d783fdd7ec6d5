"""The keys of a model's config, and those that a quantiser wrote to a separate file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bringup.adapters.checkpoints.bounded_json import read_config

CONFIG = "config.json"
MODELOPT = "hf_quant_config.json"  # NVIDIA ModelOpt's; newer versions write the keys to config.json as well
NAMES = ("quantization_config", "compression_config")


def model_config(folder: Path) -> dict[str, Any]:
    """config.json of a folder, with hf_quant_config.json as its `quantization_config`; {} if there is none.

    A `quantization_config` in config.json takes precedence. Raises BU202 and BU233.
    """
    config, quantised = folder / CONFIG, folder / MODELOPT
    if not config.is_file():
        return {}
    words = read_config(config)
    if any(words.get(name) for name in NAMES) or not quantised.is_file():
        return words
    return words | {"quantization_config": {"quant_method": "modelopt", **read_config(quantised)}}
