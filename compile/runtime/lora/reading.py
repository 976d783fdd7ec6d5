"""LoRAs of a bundle, from files and from the two tensors of a TensorRT-LLM request."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from os import PathLike
from typing import TYPE_CHECKING, Any

from bringup.adapters.apply.rank_plan import Stages
from bringup.adapters.lora.trtllm import QKV, Row, number_of, unpack
from bringup.adapters.planning.quantization import without_quantization
from bringup.compile.bundle.bundle_job import job_of_bundle
from bringup.compile.lora.opening import load_lora
from bringup.compile.lora.restore import sizes_of_modules
from bringup.compile.lora.values import refuse_copies_of_others, refuse_wrong_factors
from bringup.compile.runtime.lora.weights import LoraFactors, LoraWeights, weights_of

if TYPE_CHECKING:
    import numpy as np

    from bringup.compile.job import Job


def read_lora(
    manifest: Mapping[str, Any], path: str | PathLike[str], weights: Callable[[], Mapping[str, np.ndarray]] = dict
) -> LoraWeights:
    """The LoRA in a folder or a file, for the model of a bundle; the bundle's checkpoint need not exist any more.

    `weights` returns those of the bundle, by name. Raises the errors of the adapter, as `bringup lora check` does,
    BU168 for copies of weights that differ from the bundle's, BU169 and BU172.
    """
    loaded = load_lora(_job(manifest), path)
    loaded.refuse_if_merged_only()
    if loaded.copies:
        refuse_copies_of_others(loaded, weights())
    refuse_wrong_factors(loaded)
    return weights_of(loaded.lora, loaded.lora.arrays(loaded.files.checkpoint))


def read_request(manifest: Mapping[str, Any], weights: np.ndarray, config: np.ndarray) -> LoraWeights:
    """The LoRA of `LoraWeights` [rows, D·Hi + Ho·D] and `LoraConfig` [rows, 3] (module, layer, D).

    Raises BU173 for tensors in another format, or for another model.
    """
    job = _job(manifest)
    signature, stages = job.graph.signature(), Stages(job.graph.layer_path, len(job.graph.layers))
    names = {place: name for name in signature if (place := number_of(name, stages))}
    sizes = sizes_of_modules(signature, stages)
    outputs = {place: size.ho for place, size in sizes.items()}
    rows = (part for row in unpack(weights, config, sizes) for part in _parts(row, names, outputs))
    return LoraWeights({names[row.place]: LoraFactors(row.a, row.b.swapaxes(-1, -2)) for row in rows})


def _parts(row: Row, names: Mapping[tuple[int, int], str], outputs: Mapping[tuple[int, int], int]) -> Iterator[Row]:
    """A row; for a fused q, k and v, if the model has them separately, three rows, which share A."""
    if row.place in names:
        yield row
        return
    start = 0
    for module in QKV:
        stop = start + outputs[row.layer, module]
        yield Row(module, row.layer, row.a, row.b[start:stop])
        start = stop


def _job(manifest: Mapping[str, Any]) -> Job:
    """The job of the bundle's model with float weights: LoRAs have the names and shapes of these, and the headers of a
    quantised checkpoint cannot be derived for every format."""
    config = without_quantization(manifest["config"] or {})
    return job_of_bundle({**manifest, "config": config}, "dummy")
