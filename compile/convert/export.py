"""The published layout: restores the tensors and files of a checkpoint from a model's parameters."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from bringup.adapters.apply.materialise import fill
from bringup.adapters.apply.reverse import components, irreversible, reverse
from bringup.adapters.checkpoints.checkpoint import Checkpoint
from bringup.adapters.checkpoints.reader import HEAD
from bringup.adapters.planning.plan import Entry, Plan
from bringup.adapters.sources.file_readers import SAFETENSORS_READER
from bringup.arguments import path
from bringup.compile.bundle import folder as bundles
from bringup.compile.bundle.bundle_job import job_of_bundle
from bringup.compile.check.checker import check_job
from bringup.compile.check.value_stats import Soundness
from bringup.compile.convert.array_files import ArrayFile, array_file
from bringup.compile.convert.convert import NOTE
from bringup.compile.convert.published_files import Exported, files_of, write_words
from bringup.compile.job import Job
from bringup.diagnostics import BringupError, fail
from bringup.grouping import some
from bringup.progress import Progress, Silent, Stage
from bringup.shown import short
from bringup.spec import DTYPES, TensorInfo
from bringup.system.os_errors import need_room

if TYPE_CHECKING:
    import numpy as np


def export(
    job: Job,
    out: str | Path,
    *,
    plan: Plan | None = None,
    read: Callable[[str, Entry], np.ndarray] | None = None,
    with_dropped: Checkpoint | None = None,
    inputs: Iterable[Path] = (),
    force: bool = False,
    progress: Progress | None = None,
) -> Exported:
    """Writes the tensors of the job's checkpoint, computed from parameters, to the folder `out`.

    Weights that are quantised while they are loaded (`GraphOptions.quantize`) are written in a published quantised
    format: see `export_quantised`.

    Every tensor that the plan reads has its original bytes. Files, their order and their metadata are those of the
    checkpoint if it consists of safetensors files; otherwise there is one file. Tensors that the adapter drops are
    omitted, or copied from `with_dropped`.

    `read` returns the array of an entry of `plan`; by default both are the job's own, so that the result is the
    checkpoint converted by its adapter and back. `inputs` are further files that it reads. Memory: parameters and
    tensors that depend on one another, such as the experts of one matrix. NaN, infinity and matrices of zeros are
    written, with a warning (BU133, BU134). Raises the findings of `check`, BU117 with the list of all rules that have
    no inverse, BU143 for GGUF files and for tensors that `with_dropped` does not have, BU011 and BU012.
    """
    if job.graph.options.quantize is not None:
        from bringup.compile.convert.export_quantised import export_quantised

        if with_dropped is not None:
            message = "an export of weights that are quantised as they are loaded has no tensors that the adapter drops"
            raise fail("BU143", message, help="leave --with-dropped out, or export without --quantize")
        return export_quantised(job, out, force=force, progress=progress)
    progress, out = progress or Silent(), Path(path("out", out))
    plan = job.plan if plan is None else plan

    def own(name: str, entry: Entry) -> np.ndarray:
        return fill(entry, job.checkpoint.loaded)

    read = read or own
    with progress.stage("Checking") as stage:
        check_job(job).raise_if_errors()
        if job.checkpoint.format == "gguf":
            help = (
                "export writes safetensors files in a layout that transformers publishes; `convert` writes the graph's"
            )
            raise fail("BU143", f"`{job.checkpoint.source}` is a GGUF file, which export does not write", help=help)
        if refused := irreversible(plan):
            raise BringupError(*refused)
        consumed = {info.name for entry in plan.entries.values() for info in entry.tensors}
        dropped = {name: drop.why for name, drop in job.plan.dropped.items()}
        copied = _dropped(dropped, job.plan.headers, with_dropped)
        wanted = [info for info in job.plan.headers.values() if info.name in consumed or info.name in copied]
        left_out = {name: why for name, why in dropped.items() if name not in copied}
        files = files_of(wanted)
        stage.done(f"{len(consumed)} tensors from {len(plan.entries)} parameters")
    sources = (job.checkpoint, *([with_dropped] if with_dropped else []))
    own_files = [*inputs, *(file for source in sources for file in source.files)]
    with (
        bundles.writing(out, force=force, progress=progress, note=NOTE, inputs=own_files) as folder,
        progress.stage("Writing") as stage,
    ):
        need_room(out.resolve().parent, sum(DTYPES[info.dtype].nbytes(info.shape) for info in wanted))
        with ExitStack() as stack:
            where: dict[str, ArrayFile] = {}
            for file, infos in files.items():
                header, metadata = _original(infos)
                opened = stack.enter_context(array_file(folder / file, infos, metadata=metadata, header=header))
                where |= dict.fromkeys((info.name for info in infos), opened)
            sound = _put(plan, read, where, stage)
            for name, info in copied.items():
                where[name].put(name, cast(Checkpoint, with_dropped).read(info))
        for source in sources:
            source.refuse_changed()
        for finding in sound.findings(job.plan, stops=False):
            progress.warn(finding)
        write_words(job, folder, files, left_out)
        stage.done(f"{len(wanted)} tensors in {len(files)} file{'' if len(files) == 1 else 's'}")
    return Exported(folder=out, files=tuple(files), tensors=len(wanted), left_out=left_out)


def _put(
    plan: Plan, read: Callable[[str, Entry], np.ndarray], where: Mapping[str, ArrayFile], stage: Stage
) -> Soundness:
    """Writes the tensors of a plan to their files. The result has the parameters with values that no model has."""
    parts, sound = components(plan), Soundness()
    for count, part in enumerate(parts, 1):
        arrays = {name: read(name, entry) for name, entry in part.entries.items()}
        for name, array in arrays.items():
            sound.look(part.entries[name], array)
        for name, array in reverse(part, arrays).items():
            where[name].put(name, array)
        stage.advance(count / len(parts))
    return sound


def _dropped(
    dropped: Mapping[str, str], headers: Mapping[str, TensorInfo], source: Checkpoint | None
) -> dict[str, TensorInfo]:
    """The dropped tensors, from a source that must have them, with the shapes and dtypes of `headers`: the result has
    these headers. Raises BU143 if it lacks some, or has other ones."""
    if source is None:
        return {}
    if absent := [name for name in dropped if name not in source.headers]:
        help = "name the checkpoint that the model came from, or leave --with-dropped out"
        raise fail("BU143", f"`{source.source}` lacks {some(absent)}, which the adapter drops", help=help)
    copied = {name: source.headers[name] for name in dropped}
    for name, info in copied.items():
        theirs, ours = (f"{each.dtype} {list(each.shape)}" for each in (info, headers[name]))
        if theirs != ours:
            help = "name the checkpoint that the model came from, or leave --with-dropped out"
            raise fail("BU143", f"`{source.source}` has `{short(name)}` as {theirs}, the model's is {ours}", help=help)
    return copied


def _original(tensors: Sequence[TensorInfo]) -> tuple[bytes, dict[str, str]]:
    """For the safetensors file of these tensors: its header if it has no others, and its metadata."""
    file = tensors[0].file
    if file is None:
        return b"", {"format": "pt"}
    with file.open("rb") as opened:
        start = opened.read(HEAD)
        if not SAFETENSORS_READER.detects(file, start):  # two sources may have different formats
            return b"", {"format": "pt"}
        opened.seek(0)
        head = opened.read(8)
        text = opened.read(int.from_bytes(head, "little"))
    words = cast("dict[str, Any]", json.loads(text))
    metadata: dict[str, str] = words.pop("__metadata__", None) or {}
    return (head + text if words.keys() == {info.name for info in tensors} else b""), metadata


def export_bundle(
    bundle: Path,
    out: str | Path,
    *,
    checkpoint: str | None = None,
    with_dropped: Checkpoint | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> tuple[Exported, str]:
    """Exports the weights of a bundle; see `export`. Also returns a note for the user, "" for none.

    Shards and metadata are those of the checkpoint that the bundle was compiled from, of which headers are read, or of
    `checkpoint`. If it cannot be opened, all tensors are in one file. Weights that were quantised as they were loaded
    are quantised again. Raises BU603 and BU608 for a bundle whose files differ from the compiled ones, BU143 if those
    of the checkpoint have other values.
    """
    from bringup.adapters.checkpoints.arrays import mapped
    from bringup.adapters.checkpoints.safetensors import read_header
    from bringup.compile.packed_job import as_compiled
    from bringup.compile.targets.selection import selection_of

    manifest = bundles.read_manifest(bundle)
    bundles.check_files(bundle, manifest)
    job, note = _job_of(bundle, manifest, checkpoint)
    if note and job.graph.options.quantize is not None:
        message = f"the weights of `{bundle}` were quantised as they were loaded, from a checkpoint that is not there"
        raise fail("BU143", message, help="name the checkpoint that it was compiled from with --checkpoint")
    plan = selection_of(manifest).laid_out(as_compiled(job, manifest)).plan
    file, aliases = bundle / bundles.WEIGHTS, cast("dict[str, str]", manifest["aliases"])
    infos = read_header(file)
    if absent := [name for name in plan.entries if aliases.get(name, name) not in infos]:
        raise fail("BU143", f"`{bundle}` lacks {some(absent)}", help="name the checkpoint that it was compiled from")

    def read(name: str, entry: Entry) -> np.ndarray:
        return mapped(file, infos[aliases.get(name, name)])

    if job.graph.options.quantize is not None:
        _refuse_other_values(bundle, job, plan, read)
    done = export(job, out, plan=plan, read=read, with_dropped=with_dropped, force=force, progress=progress)
    return done, note


def _refuse_other_values(bundle: Path, job: Job, plan: Plan, read: Callable[[str, Entry], np.ndarray]) -> None:
    """Raises BU143 if the checkpoint of a job has other values for an entry of `plan` than a bundle, as `read`."""
    import numpy as np

    from bringup.adapters.checkpoints.arrays import bytes_of

    for name, entry in plan.entries.items():
        own, theirs = read(name, entry), fill(entry, job.checkpoint.loaded)
        if not (np.array_equal(own, theirs) or np.array_equal(bytes_of(own), bytes_of(theirs))):  # NaN differs from NaN
            message = f"`{job.checkpoint.source}` has other values for `{name}` than `{bundle}`"
            help = "name the checkpoint that it was compiled from with --checkpoint, or compile it again"
            raise fail("BU143", message, help=help, parameter=name)


def _job_of(bundle: Path, manifest: dict[str, Any], checkpoint: str | None) -> tuple[Job, str]:
    """The bundle's job; without its checkpoint, one with the names and shapes that its adapter reads."""
    try:
        return job_of_bundle(manifest, checkpoint), ""
    except BringupError as error:
        if checkpoint is not None or error.findings[0].code not in ("BU005", "BU034", "BU911", "BU201"):
            raise
        message = error.findings[0].message
    try:
        job = job_of_bundle(manifest, "dummy")
    except BringupError as error:
        if error.findings[0].code != "BU118":
            raise
        why = f"{message}, and {error.findings[0].message}"
        without = f"cannot export `{bundle}` without the checkpoint that it was compiled from"
        help = "name it with --checkpoint: only its headers are read"
        raise fail("BU143", f"{without}: {why}", help=help) from None
    weights = manifest["weights"]
    provenance = {"source": manifest["provenance"]["source"], "weights": weights}
    opened = replace(job.checkpoint, format=weights if weights == "dummy" else "dict", provenance=provenance)
    return replace(job, checkpoint=opened), f"{message}: all tensors go to one file, as `{bundle}` has them"
