"""Writes the factors that each rank of a divided model holds.

Column-parallel parameters (q, k, v, gate, up): a rank has its rows of B and all of A. Row-parallel ones (o, down): its
columns of A and all of B, so the sum over ranks is B · A · x. Experts and layers: those of the rank. This is the
division of TensorRT-LLM's docs/source/advanced/lora.md, whose runtime performs it itself on the complete factors.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from bringup.adapters.apply.materialise import materialise
from bringup.adapters.apply.parallel import Parallel
from bringup.adapters.apply.rank_plan import Stages, check_axes, rank_plan
from bringup.adapters.lora.factors import Lora, narrowed, scaled
from bringup.adapters.lora.files import open_lora
from bringup.adapters.lora.load import load
from bringup.arguments import integer, path
from bringup.compile.bundle import folder as bundles
from bringup.compile.convert.array_files import array_file
from bringup.compile.convert.convert import NOTE, SCHEMA, mapping_of, write_json
from bringup.compile.job import Job, as_job
from bringup.compile.lora.opening import lora_base
from bringup.compile.lora.values import refuse_wrong_values
from bringup.spec import TensorInfo

if TYPE_CHECKING:
    import numpy as np


def convert_lora_ranks(
    job: Job,
    lora: str | Path,
    out: str | Path,
    *,
    parallel: Parallel,
    rank: int | None = None,
    dtype: str = "float16",
    force: bool = False,
) -> tuple[str, ...]:
    """Writes rankN.safetensors for one rank or for all; returns the names of the files.

    A file has `PARAMETER.lora_A` [D, Hi] and `PARAMETER.lora_B` [Ho, D] of the parameters that the rank holds; factors
    of experts have the axis of the experts first. B is multiplied by the scale. Raises the errors of the adapter,
    BU045, BU130 and BU138 if ranks do not fit, BU169, BU172, BU174 for values out of the range of `dtype`, BU011 and
    BU012.
    """
    job, lora, out = as_job(job), path("lora", lora), Path(path("out", out))
    files = open_lora(lora)
    loaded = load(files, lora_base(job, files))
    loaded.refuse_if_merged_only()
    refuse_wrong_values(job, loaded)
    check_axes(job.plan, parallel)
    stages = Stages.of(job.graph)
    numbers = range(parallel.size) if rank is None else [integer("rank", rank, minimum=0)]
    plans = [rank_plan(loaded.lora.plan, parallel, number, stages) for number in numbers]
    names = [f"rank{number}.safetensors" for number in numbers]
    with bundles.writing(out, force=force, note=NOTE, inputs=files.checkpoint.files) as folder:
        for name, plan in zip(names, plans, strict=True):
            arrays = _scaled(loaded.lora, materialise(plan, files.checkpoint), dtype)
            infos = [TensorInfo(key, dtype, array.shape, nbytes=array.nbytes) for key, array in arrays.items()]
            with array_file(folder / name, infos, metadata={"format": "pt"}) as opened:
                for key, array in arrays.items():
                    opened.put(key, array)
        note = {
            "schema": SCHEMA,
            "to": "lora_ranks",
            "model": job.family.name,
            "dtype": dtype,
            "source": lora,
            "mapping": mapping_of(parallel),
            "files": {name: {"rank": number} for name, number in zip(names, numbers, strict=True)},
        }
        write_json(folder / NOTE, note)
    return tuple(names)


def _scaled(lora: Lora, arrays: Mapping[str, np.ndarray], dtype: str) -> dict[str, np.ndarray]:
    """The arrays in `dtype`, each B multiplied by its scale. Raises BU174."""
    scales = {factor.b: factor.scale for factor in lora.factors}
    found: dict[str, np.ndarray] = {}
    for name, array in arrays.items():
        exact = scaled(array, scales[name]) if name in scales else array
        found[name] = narrowed(exact, dtype, f"`{name}`")
    return found
