"""Writes the arrays of each rank to a folder, in one pass over the checkpoint's files."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bringup.adapters.apply.byte_runs import groups
from bringup.adapters.apply.left_out import refuse_wrongly_left_out
from bringup.adapters.apply.parallel import Parallel
from bringup.adapters.apply.rank_plan import Stages, check_axes
from bringup.adapters.planning.plan import Plan
from bringup.arguments import choice, integer, path
from bringup.compile.bundle import folder as bundles
from bringup.compile.bundle.contents import plan_hash
from bringup.compile.check.checker import check_job
from bringup.compile.convert.array_files import FORMATS, array_file
from bringup.compile.convert.convert_inputs import SourceFiles, inputs_digest
from bringup.compile.convert.forms import FORMS, Form, form_of
from bringup.compile.convert.shards import Writer, by_layer, shards_of
from bringup.compile.convert.staging import Staging
from bringup.compile.job import Job, as_job
from bringup.compile.targets.selection import select
from bringup.diagnostics import BringupError
from bringup.progress import Progress, Silent
from bringup.spec import DTYPES, TensorInfo
from bringup.system.atomic import write_file
from bringup.system.lock import sibling_path
from bringup.system.os_errors import need_room

NOTE = "bringup.json"  # describes the folder; identifies it as one of `convert` or `export`
SCHEMA = 1
ONE = Parallel()


@dataclass(frozen=True, slots=True, kw_only=True)
class Converted:
    """The result: the folder, its files of arrays, the bytes read from the checkpoint, and the bytes of each file."""

    folder: Path
    files: tuple[str, ...]
    read: int
    written: tuple[int, ...]


def check_output(out: Path, *, force: bool) -> None:
    """Raises BU011, BU012 or BU901 if weights cannot be written to the folder `out`; before anything is read."""
    bundles.refuse(out, force=force, note=NOTE)


def convert(
    job: Job,
    out: str | Path,
    *,
    to: str = "graph",
    target: str = "cpu",
    parallel: Parallel = ONE,
    rank: int | None = None,
    form: str = "safetensors",
    layered: bool = False,
    force: bool = False,
    progress: Progress | None = None,
) -> Converted:
    """Writes the arrays of one rank, or of all ranks, to the folder `out`.

    `to`: `graph`, the graph's own parameters; `layout`, the physical buffers of `target`; `fused`, q, k and v in
    one matrix, gate and up in one, the projections of a recurrent layer in one, shared experts appended to the routed
    ones; `trtllm`, TensorRT-LLM's checkpoint; `sharded_state`, the format of that name in vLLM and SGLang.
    `form` is safetensors or npz. A single rank of a
    model that is not divided is model.safetensors, several are rankN.safetensors. config.json is the model's
    config without keys of quantisation, as all arrays are floats; bringup.json describes the folder.

    Tensors are read once, in file order, or with `layered` layer by layer; threads compute ahead, with at most 256 MiB
    of tensors and arrays, or one parameter's. The folder is written completely or not at all. An interrupted conversion
    resumes, when it is called again, with the shard that it was at (see `shards.py`). NaN, infinity and matrices of
    zeros are written as they are, with a warning (BU133, BU134). Raises BringupError with the findings of `check`,
    BU011 and BU012 if `out` exists, BU045, BU130 and BU138 if ranks do not fit, BU115 if a dropped tensor has values
    that must not be dropped, BU139 for a dtype that the format does not support, BU140 for a form that the model does
    not support, BU207 for a file of the checkpoint that changes meanwhile.
    """
    job, progress = as_job(job), progress or Silent()
    to, form, out = choice("to", to, FORMS), choice("form", form, FORMATS), Path(path("out", out))
    with progress.stage("Checking") as stage:
        check_job(job).raise_if_errors()
        job.checkpoint.refuse_changed()
        refuse_wrongly_left_out(job.plan, job.checkpoint.read)
        check_axes(job.plan, parallel)
        selection = select(target)
        chosen = form_of(job, to, parallel, selection.target.layout(job.graph))
        ranks = range(parallel.size) if rank is None else [integer("rank", rank, minimum=0)]
        plans = [chosen.plan_of(number) for number in ranks]
        sources = SourceFiles.of(plans)  # before waiting for another writer
        job.checkpoint.refuse_changed()
        stage.done(f"{sum(len(plan.entries) for plan in plans)} arrays for {len(plans)} of {parallel.size} ranks")
    with (
        bundles.writing(out, force=force, progress=progress, note=NOTE, inputs=job.checkpoint.files) as folder,
        progress.stage("Writing") as stage,
    ):
        names = [(chosen.single if parallel.size == 1 else chosen.file.format(rank=number)) for number in ranks]
        files = [f"{name}.{form}" for name in names]
        order = Stages.of(job.graph).layer if layered else None
        words = [to, form, layered, files, repr(parallel)]
        digest = inputs_digest(job, plans, selection if to == "layout" else None, words)
        staging = Staging.opened(sibling_path(folder.parent / out.resolve().name, "resume"), digest)
        with _cleaned_up(staging):
            writer = _write(job, plans, files, folder, staging, sources, order, stage.advance)
        for finding in writer.sound.findings(job.plan, stops=False):
            progress.warn(finding)
        layout_of = {"target": target} if to == "layout" else {}
        _write_words(job, chosen, folder, ranks, files, plans, {"read": writer.nbytes, **layout_of})
        again = f", {writer.reused} shards taken over" if writer.reused else ""
        written = tuple((folder / file).stat().st_size for file in files)
        count = "1 file" if len(files) == 1 else f"{len(files)} files"
        stage.done(f"{sum(written) / 1e6:,.1f} MB in {count}, {writer.nbytes / 1e6:,.1f} MB read{again}")
    return Converted(folder=out, files=tuple(files), read=writer.nbytes, written=written)


def _write(
    job: Job,
    plans: Sequence[Plan],
    files: Sequence[str],
    folder: Path,
    staging: Staging,
    sources: SourceFiles,
    layer: Callable[[str], int | None] | None,
    advance: Callable[[float], None],
) -> Writer:
    """Writes every parameter of every rank, grouped by the tensors that they need; the files are then in `folder`."""
    infos = [
        [TensorInfo(name, entry.declared.storage[1], entry.declared.storage[0]) for name, entry in plan.entries.items()]
        for plan in plans
    ]
    place = staging.folder
    there = sum(file.stat().st_blocks * 512 for file in place.iterdir()) if staging.written else 0
    need_room(folder.parent, sum(DTYPES[info.dtype].nbytes(info.shape) for some in infos for info in some) - there)
    form = files[0].rpartition(".")[2]
    writer, todo = Writer(job.checkpoint, plans, sources), groups(plans)
    todo = by_layer(todo, plans, layer) if layer else todo
    with ExitStack() as stack:
        opened = [
            stack.enter_context(array_file(place / file, some, form, {"format": "np"}, again=True))
            for file, some in zip(files, infos, strict=True)
        ]
        shards = shards_of(todo, plans, staging.inputs)
        writer.write(shards, opened, staging, advance)
    sources.check()
    staging.take_into(folder, files)
    return writer


@contextmanager
def _cleaned_up(staging: Staging) -> Generator[None]:
    """After an error in the block, keeps a staging only if a later run can resume it; the error names it."""
    try:
        yield
    except BaseException as error:
        if isinstance(error, BringupError) and any(finding.code == "BU207" for finding in error.findings):
            staging.discard()  # the checkpoint has changed
        staging.abandon()
        if isinstance(error, BringupError):
            raise staging.named_in(error) from error
        raise


def _write_words(
    job: Job,
    form: Form,
    folder: Path,
    ranks: Sequence[int],
    files: Sequence[str],
    plans: Sequence[Plan],
    more: Mapping[str, Any],
) -> None:
    """config.json, the tokenizer, and bringup.json, which also has `more`."""
    write_json(folder / "config.json", form.config)
    if job.checkpoint.tokenizer and job.checkpoint.tokenizer.name == "tokenizer.json":
        shutil.copyfile(job.checkpoint.tokenizer, folder / "tokenizer.json")
    parallel = form.parallel
    note = {
        "schema": SCHEMA,
        "to": form.name,
        "model": job.family.name,
        "dtype": job.graph.dtype,
        "weights": "dummy" if job.checkpoint.is_dummy else "checkpoint",
        "source": job.checkpoint.source,
        "mapping": mapping_of(parallel),
        "files": {
            file: {"rank": number, "plan": plan_hash(plan)}
            for file, number, plan in zip(files, ranks, plans, strict=True)
        },
        **more,
    }
    write_json(folder / NOTE, note)


def mapping_of(parallel: Parallel) -> dict[str, Any]:
    """The division among ranks, with TensorRT-LLM's keys if it has them; `physical_to_logical_map` is SGLang's."""
    return {
        "world_size": parallel.size,
        "tp_size": parallel.tp,
        "ep_size": parallel.ep,
        "pp_size": parallel.pp,
        "stage_layers": list(parallel.stage_layers),
        "vocab_multiple": parallel.vocab_multiple,
        "physical_to_logical_map": [list(row) for row in parallel.experts],
        "redundant_experts": parallel.redundant,
    }


def write_json(file: Path, words: Mapping[str, Any]) -> None:
    """Writes an object, one key on each line."""
    write_file(file, (json.dumps(words, indent=2, default=str) + "\n").encode())
