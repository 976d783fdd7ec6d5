"""Converts an adapter to the files of a TensorRT-LLM request, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bringup.adapters.apply.rank_plan import Stages
from bringup.adapters.lora.config import FILE
from bringup.adapters.lora.factors import scaled
from bringup.adapters.lora.files import LoraFiles, open_lora
from bringup.adapters.lora.load import load
from bringup.adapters.lora.trtllm import Row, pack, rows_of, unpack
from bringup.adapters.sources.open_checkpoint import open_path
from bringup.adapters.trtllm.lora_modules import cross_attention
from bringup.compile.bundle import folder as bundles
from bringup.compile.convert.array_files import array_file
from bringup.compile.convert.convert import NOTE, SCHEMA, write_json
from bringup.compile.job import Job
from bringup.compile.lora.opening import lora_base, published_base
from bringup.compile.lora.restore import restored, sizes_of_modules
from bringup.compile.lora.values import refuse_wrong_values
from bringup.diagnostics import fail
from bringup.spec import TensorInfo

if TYPE_CHECKING:
    import numpy as np

WEIGHTS, CONFIG = "lora_weights", "lora_config"
FORMATS = ("safetensors", "numpy")


def request_tensors(job: Job, files: LoraFiles, dtype: str) -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
    """LoraWeights in `dtype`, LoraConfig, and the modules of cross attention among them.

    No built-in model has cross attention: these modules are converted by name, without a check that they fit. Raises
    the errors of the adapter, BU169, BU170, BU172, and BU174 for values out of the range of `dtype`.
    """
    cross = _cross_attention(files)
    own = {name: info for name, info in files.checkpoint.headers.items() if name not in cross}
    rows = [row for row in _cross_rows(files, cross) if row is not None]
    if own or not rows:
        checkpoint = replace(files.checkpoint, headers=own)
        loaded = load(replace(files, checkpoint=checkpoint), lora_base(job, files))
        loaded.refuse_if_merged_only()
        refuse_wrong_values(job, loaded)
        rows += rows_of(loaded.lora, loaded.lora.arrays(checkpoint), Stages.of(job.graph))
    rows.sort(key=lambda row: row.place)
    return *pack(rows, dtype), tuple(dict.fromkeys(cross.values()))


def convert_lora(
    job: Job, path: str, out: Path, *, dtype: str = "float16", form: str = "safetensors", force: bool = False
) -> tuple[str, ...]:
    """Writes the two tensors; returns the modules of cross attention, as `request_tensors` does.

    `form` numpy: model.lora_weights.npy and model.lora_config.npy, the names in TensorRT-LLM's own script; safetensors:
    both in lora.safetensors. Raises BU139 for bfloat16 in numpy's files, which do not support it, BU011 and BU012.
    """
    if form == "numpy" and dtype == "bfloat16":
        help = "choose --format safetensors, or another --storage-type"
        raise fail("BU139", "the weights would be bfloat16, which .npy files do not have", help=help)
    files = open_lora(path)
    weights, config, cross = request_tensors(job, files, dtype)
    with bundles.writing(out, force=force, note=NOTE, inputs=files.checkpoint.files) as folder:
        if form == "numpy":
            import numpy as np

            np.save(folder / f"model.{WEIGHTS}.npy", weights)
            np.save(folder / f"model.{CONFIG}.npy", config)
        else:
            _write(folder / "lora.safetensors", {WEIGHTS: weights, CONFIG: config})
        write_json(folder / NOTE, {"schema": SCHEMA, "to": "trtllm", "model": job.family.name, "source": path})
    return cross


def restore_lora(job: Job, path: str, out: Path, *, force: bool = False) -> int:
    """Converts the output of `convert_lora` or TensorRT-LLM's script to peft's files, float32; returns the number of
    modules.

    Raises BU173 for files of another model.
    """
    weights, config = _read(Path(path))
    stages, signature = Stages.of(job.graph), job.graph.signature()
    rows = unpack(weights, config, sizes_of_modules(signature, stages))
    found = restored(rows, published_base(job), signature, stages)
    with bundles.writing(out, force=force, note=NOTE, inputs=[Path(path)]) as folder:
        _write(folder / "adapter_model.safetensors", found.tensors)
        write_json(folder / FILE, {**found.config, "base_model_name_or_path": _named(job)})
        write_json(folder / NOTE, {"schema": SCHEMA, "to": "peft", "model": job.family.name, "source": path})
    return len(found.config["target_modules"])


def _named(job: Job) -> str | None:
    return None if job.checkpoint.is_dummy else job.checkpoint.source


def _cross_attention(files: LoraFiles) -> dict[str, str]:
    """Factors of cross attention: the tensor's name, and its module's."""
    parts = {name: files.spelling.part(name) for name in files.checkpoint.headers}
    return {name: part.module for name, part in parts.items() if part and cross_attention(part.module)}


def _cross_rows(files: LoraFiles, cross: Mapping[str, str]) -> Sequence[Row | None]:
    modules: dict[str, dict[str, np.ndarray]] = {}
    for name, module in cross.items():
        part = files.spelling.part(name)
        if part:
            modules.setdefault(module, {})[part.side] = files.checkpoint.read(files.checkpoint.headers[name])
    files.checkpoint.refuse_changed()
    return [_cross_row(files, module, sides) for module, sides in modules.items()]


def _cross_row(files: LoraFiles, module: str, sides: Mapping[str, np.ndarray]) -> Row | None:
    import numpy as np

    place, rank = cross_attention(module), files.config.rank_of(module)
    a, b = sides.get("a"), sides.get("b")
    if place is None or a is None or b is None or a.ndim != 2 or b.ndim != 2 or not len(a) == b.shape[1] == rank:
        message = f"`{module}` of cross attention has no pair of factors of rank {rank}"
        raise fail("BU164", message, help="download the adapter's files again", sources=(module,))
    return Row(place[1], place[0], a.astype(np.float32), scaled(b, files.config.scale_of(module, rank)))


def _write(file: Path, arrays: Mapping[str, Any]) -> None:
    infos = [TensorInfo(name, str(array.dtype), array.shape, nbytes=array.nbytes) for name, array in arrays.items()]
    with array_file(file, infos, metadata={"format": "pt"}) as opened:
        for name, array in arrays.items():
            opened.put(name, array)


def _read(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """The two tensors of a folder, or of a safetensors file. Raises BU173."""
    opened = open_path(folder)
    found = {name.removeprefix("model."): info for name, info in opened.headers.items()}
    if not {WEIGHTS, CONFIG} <= found.keys():
        help = "name the folder that `bringup lora convert` or hf_lora_convert.py wrote"
        raise fail("BU173", f"`{folder}` has no {WEIGHTS} and {CONFIG}", help=help, file=str(folder))
    return opened.read(found[WEIGHTS]), opened.read(found[CONFIG])
