"""Writes weights that are quantised while they are loaded as a checkpoint in a published format."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from bringup.adapters.apply.materialise import fill_region
from bringup.adapters.apply.quantise import QuantisedTensor, quantised_tensors, recipe_of
from bringup.arguments import path
from bringup.compile.bundle import folder as bundles
from bringup.compile.check.checker import check_job
from bringup.compile.check.value_stats import Soundness
from bringup.compile.convert.array_files import ArrayFile, array_file
from bringup.compile.convert.convert import NOTE
from bringup.compile.convert.published_files import Exported, files_of, write_words
from bringup.compile.convert.published_forms import PublishedForm, published_form
from bringup.compile.job import Job
from bringup.diagnostics import fail
from bringup.progress import Progress, Silent
from bringup.spec import DTYPES, TensorInfo
from bringup.system.os_errors import need_room

HEADS = ("lm_head", "embed_out")  # transformers' names; a tied head has no tensor of its own


def export_quantised(job: Job, out: str | Path, *, force: bool = False, progress: Progress | None = None) -> Exported:
    """Writes the checkpoint of a job whose graph options quantise its weights: each matrix as codes and scales.

    Other tensors have their original bytes; those that the adapter drops are omitted. Files are those of the
    checkpoint, and config.json also has `quantization_config`. Weights loaded from it have the values of the job's own
    parameters. Memory: one matrix.
    Raises the findings of `check`, BU117 for a tensor that is quantised and also read as floats, BU133 for a matrix
    with NaN or infinity, BU143 for one that the format does not support, BU011 and BU012. Other tensors with such
    values are written, with a warning.
    """
    progress, out, plan = progress or Silent(), Path(path("out", out)), job.plan
    form, read = published_form(recipe_of(job.graph.options.quantize or "")), job.checkpoint.loaded
    with progress.stage("Checking") as stage:
        check_job(job).raise_if_errors()
        quantised = quantised_tensors(plan)
        read_by_us = {info.name: entry for entry in plan.entries.values() for info in entry.tensors}
        parts = {name: _parts(form, tensor) for name, tensor in quantised.items()}
        unchanged = [info for info in plan.headers.values() if info.name in read_by_us and info.name not in quantised]
        files = files_of([*unchanged, *(info for each in parts.values() for info in each.values())])
        stage.done(f"{len(quantised)} matrices of {len(read_by_us)} tensors")
    left_out = {name: drop.why for name, drop in plan.dropped.items()}
    with (
        bundles.writing(out, force=force, progress=progress, note=NOTE, inputs=job.checkpoint.files) as folder,
        progress.stage("Writing") as stage,
    ):
        infos = [info for each in files.values() for info in each]
        need_room(out.resolve().parent, sum(DTYPES[info.dtype].nbytes(info.shape) for info in infos))
        with ExitStack() as stack:
            where, sound = dict[str, ArrayFile](), Soundness()
            for file, held in files.items():
                opened = stack.enter_context(array_file(folder / file, held, metadata={"format": "pt"}))
                where |= dict.fromkeys((info.name for info in held), opened)
            for info in unchanged:
                array = read(info)
                sound.look_at_tensor(read_by_us[info.name], info, array)
                where[info.name].put(info.name, array)
            for number, (name, tensor) in enumerate(quantised.items(), 1):
                codes, scales = (
                    fill_region(region, tensor.entry.sources, read, region.dtype) for region in tensor.matrix.arrays
                )
                for part, array in form.arrays(codes, scales).items():
                    where[parts[name][part].name].put(parts[name][part].name, array)
                stage.advance(number / len(quantised))
        job.checkpoint.refuse_changed()
        for finding in sound.findings(plan, stops=False):
            progress.warn(finding)
        words = form.words(sorted(_unquantised(job, quantised)))
        config = {**job.config, "quantization_config": words}
        write_words(replace(job, config=config), folder, files, left_out, own_config=True)
        stage.done(f"{len(infos)} tensors in {len(files)} file{'' if len(files) == 1 else 's'}")
    return Exported(folder=out, files=tuple(files), tensors=len(infos), left_out=left_out)


def _parts(form: PublishedForm, tensor: QuantisedTensor) -> dict[str, TensorInfo]:
    """The tensors that store a matrix, by part; each in the matrix's file and at its position."""
    info, of_form = tensor.info, tensor.matrix.form
    assert of_form
    by_columns = of_form.block[1] == 1 and of_form.block[0] != 1
    if len(info.shape) != 2 or not info.name.endswith(".weight") or (by_columns and not form.any_order):
        message = f"`{info.name}` {list(info.shape)} is not a module's matrix [out, in], as published formats require"
        help = "publish the model's weights with one matrix [out, in] a tensor, or export without --quantize"
        raise fail("BU143", message, help=help)
    stem = info.name.removesuffix("weight")
    return {
        part: info._replace(name=f"{stem}{part}", dtype=dtype, shape=shape, nbytes=DTYPES[dtype].nbytes(shape))
        for part, (dtype, shape) in form.parts(info.shape).items()
    }


def _unquantised(job: Job, quantised: Mapping[str, QuantisedTensor]) -> Iterator[str]:
    """The modules whose matrices are not quantised; heads, which may have no tensor of their own, are among them."""
    yield from HEADS
    for info in job.plan.headers.values():
        if len(info.shape) == 2 and info.name.endswith(".weight") and info.name not in quantised:
            yield info.name.removesuffix(".weight")
