"""LoRAs of a bundle from files."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from typing import Any

from bringup.compile.bundle.bundle_job import job_of_bundle
from bringup.compile.lora.opening import load_lora
from bringup.compile.runtime.lora.weights import LoraWeights, weights_of


def read_lora(manifest: Mapping[str, Any], path: str | PathLike[str]) -> LoraWeights:
    """The LoRA in a folder or a file, for the model of a bundle; the bundle's checkpoint need not be there any more.

    Raises what is wrong with it, as `bringup lora check` does.
    """
    loaded = load_lora(job_of_bundle(dict(manifest), "dummy"), path)
    loaded.raise_if_errors()
    return weights_of(loaded.lora, loaded.lora.arrays(loaded.files.checkpoint))
