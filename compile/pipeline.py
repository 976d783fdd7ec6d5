"""The whole way, one stage after the other. Read this file first.

checkpoint headers ─┐
graph ── signature ─┴─ plan ── check ── program ── lowered ── bundle
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bringup.adapters.materialise import check_ties, fill
from bringup.adapters.plan import Plan
from bringup.compile import bundle as bundles
from bringup.compile.check import check as check_plan
from bringup.compile.job import Job, job_of
from bringup.compile.target import resolve
from bringup.compile.weights_file import write_weights
from bringup.diagnostics import Diagnostic, Report, Severity, fail
from bringup.graphs.graph import Graph
from bringup.graphs.module import Const
from bringup.progress import Progress, Silent
from bringup.spec import TensorInfo

if TYPE_CHECKING:
    import numpy as np

    from bringup.compile.program import Program

PHASES = ("program", "mlir", "vmfb", "bundle")
DEFAULT_CONTEXT = 2048
BUCKETS = (64, 128, 256, 512)  # prefill lengths; a prompt is padded to the next, a longer one runs in chunks


def check(job: Job) -> Report:
    """Proves, from headers alone, that the job's checkpoint fits its graph: the report says what does not."""
    start = time.perf_counter()
    report = check_plan(job.plan, job.graph.config.family)
    report.findings = [*job.findings, *report.findings]
    report.seconds = time.perf_counter() - start
    return report


def build(
    job: Job | Graph,
    *,
    out: str | Path,
    weights: Mapping[str, np.ndarray] | None = None,
    target: str = "cpu",
    max_seq_len: int | None = None,
    buckets: Sequence[int] = BUCKETS,
    all_logits: bool = False,
    force: bool = False,
    emit: str = "bundle",
    dump_dir: str | Path | None = None,
    progress: Progress | None = None,
) -> Path:
    """Compiles to a bundle at `out`, or, with `emit`, to the file of an earlier phase.

    Takes a job, or a graph and the dict of its weights by exact name: missing, extra and mis-shaped ones raise before
    anything is exported, all at once. `buckets` are the prefill lengths that are compiled. `all_logits` keeps the
    logits of every prompt token (for scoring), not only of the last. `dump_dir` receives each phase as text. Raises
    BringupError; nothing half-written stays behind.
    """
    if isinstance(job, Graph):
        job = job_of(job, weights or {})
    lowering, out, progress = resolve(target), Path(out), progress or Silent()
    context = context_of(job, max_seq_len)
    if emit == "bundle":
        bundles.refuse(out, force=force)
    with progress.stage("Checking") as stage:
        report = check(job)
        report.raise_if_errors()
        for finding in tie_warnings(job):
            progress.warn(finding)
        stage.done(f"{len(job.plan.entries)} parameters against {len(job.plan.headers)} tensors")
    with progress.stage("Exporting") as stage:
        program = export(job.graph, context, buckets, all_logits=all_logits)
        stage.done(f"{len(program.interface.entries)} entry points, {len(program.interface.functions)} functions")
    if emit != "bundle":
        return _emit(program, emit, out, dump_dir, progress)
    with bundles.writing(out) as folder:
        _lower(program, lowering, folder, dump_dir, progress)
        with progress.stage("Writing") as stage:
            nbytes = _write_weights(job, context, folder / bundles.WEIGHTS, stage.advance)
            stage.done(f"weights, {nbytes / 1e6:,.1f} MB")
        _write_tokenizer(job, folder)
        (folder / "signature.json").write_text(job.plan.signature.to_json(), "utf-8")
        bundles.seal(folder, _manifest(job, target, lowering, context, program))
    return out


def export(graph: Graph, context: int, buckets: Sequence[int] = BUCKETS, *, all_logits: bool = False) -> Program:
    """The graph's program for a context of `context` tokens: prefill of each bucket's length, and decode.

    Of the buckets that hold the whole context, only the smallest is kept.
    """
    from bringup.compile.export import ExportOptions, export_program
    from bringup.compile.steps import slots_for
    from bringup.graphs.module import State
    from bringup.graphs.torch_module import to_torch

    module = to_torch(graph, graph.dtype, positions=context, slots=slots_for(context))
    states = [name for name, _ in graph.leaves(State)]
    whole = min((size for size in buckets if size >= context), default=max(buckets))
    useful = [size for size in sorted(buckets) if size <= whole]
    options = ExportOptions(buckets=useful, max_seq=context, all_logits=all_logits)
    return export_program(module, kinds=graph.kinds(), states=states, options=options)


def context_of(job: Job, asked: int | None) -> int:
    """How many tokens a program is made for. Raises BU007 when the model has fewer positions than asked."""
    largest = job.graph.config.max_positions
    if asked is not None and not 1 <= asked <= largest:
        raise fail("BU007", f"--max-seq-len {asked} is not between 1 and the model's {largest}")
    return asked or min(largest, DEFAULT_CONTEXT)


def _emit(program: Program, phase: str, out: Path, dump_dir: str | Path | None, progress: Progress) -> Path:
    """Writes one phase to `out`."""
    if phase not in PHASES:
        raise fail("BU008", f"there is no phase `{phase}`", help=f"one of graph, plan, {', '.join(PHASES)}")
    if phase == "program":
        text = "\n\n".join(f"# {name}\n{exported}" for name, exported in program.exported.items())
        return _text(out, text)
    from bringup.compile.lower.mlir import to_mlir

    with progress.stage("Lowering"):
        mlir = to_mlir(program)
        return _text(out, mlir) if phase == "mlir" else _bytes(out, compile_mlir(mlir, dump_dir))


def _lower(program: Program, lowering: str, folder: Path, dump_dir: str | Path | None, progress: Progress) -> None:
    """The executable part of a bundle."""
    if dump_dir:
        dump(program, Path(dump_dir))
    with progress.stage("Lowering") as stage:
        if lowering == "torch":
            from bringup.compile.run.torch import save_functions

            save_functions(program.exported, folder / "programs")
            stage.done(f"{len(program.exported)} exported functions")
            return
        from bringup.compile.lower.mlir import to_mlir

        module = compile_mlir(to_mlir(program), dump_dir)
        _bytes(folder / "module.vmfb", module)
        stage.done(f"module.vmfb, {len(module) / 1e3:,.0f} kB")


def compile_mlir(mlir: str, dump_dir: str | Path | None) -> bytes:
    """IREE's module for this processor. Raises BU401 with the compiler's first error."""
    from bringup.compile.lower.iree import IreeOptions, LoweringError
    from bringup.compile.lower.iree import compile_mlir as compile_with_iree

    try:
        return compile_with_iree(mlir, IreeOptions(dump_dir=Path(dump_dir, "iree") if dump_dir else None))
    except LoweringError as error:
        raise fail(
            "BU401",
            f"IREE could not lower the program: {error}",
            help="keep the phases with --dump-dir DIR; `--target torch` runs the same program without IREE",
        ) from error


def dump(program: Program, folder: Path) -> None:
    """Each phase as a numbered text file."""
    from bringup.compile.lower.mlir import to_mlir

    folder.mkdir(parents=True, exist_ok=True)
    for name, exported in program.exported.items():
        _text(folder / f"1-program.{name}.txt", str(exported))
    _text(folder / "2-model.mlir", to_mlir(program))


def _text(path: Path, text: str) -> Path:
    return _bytes(path, text.encode())


def _bytes(path: Path, data: bytes) -> Path:
    """Writes a file whole or not at all."""
    part = path.with_name(f".{path.name}.part")
    try:
        part.write_bytes(data)
        part.replace(path)
    except OSError as error:
        raise fail("BU901", f"cannot write `{path}`: {error.strerror}") from error
    finally:
        part.unlink(missing_ok=True)
    return path


def _write_weights(job: Job, context: int, path: Path, advance: Callable[[float], None]) -> int:
    """Every parameter once, and the computed tables. Gives the bytes written."""
    aliases = job.plan.aliases()
    stored = {name: entry for name, entry in job.plan.entries.items() if name not in aliases}
    tables = {name: leaf.table(context) for name, leaf in job.graph.leaves(Const)}
    infos = [TensorInfo(name, dtype, shape) for name, (shape, dtype) in _storage(stored)]
    infos += [TensorInfo(name, "float32", table.shape) for name, table in tables.items()]

    def make(name: str) -> np.ndarray:
        return tables[name] if name in tables else fill(stored[name], job.checkpoint.read)

    write_weights(path, infos, make, advance)
    return path.stat().st_size


def _storage(entries: Mapping[str, Any]) -> list[tuple[str, tuple[tuple[int, ...], str]]]:
    return [(name, entry.declared.storage) for name, entry in entries.items()]


def _write_tokenizer(job: Job, folder: Path) -> None:
    if job.checkpoint.tokenizer:
        from bringup.compile.run.tokenizer import load_tokenizer, to_folder

        to_folder(load_tokenizer(job.checkpoint.tokenizer), folder / bundles.TOKENIZER)


def _manifest(job: Job, target: str, lowering: str, context: int, program: Program) -> dict[str, Any]:
    return {
        "target": lowering,
        "asked_target": target,
        "model": job.graph.config.family,
        "asked_model": job.model,
        "adapter": job.adapter_file,
        "allow": dict(job.allow),
        "dtype": job.graph.dtype,
        "max_seq_len": context,
        "vocab_size": job.graph.config.vocab_size,
        "weights": "dummy" if job.checkpoint.is_dummy else "checkpoint",
        "provenance": dict(job.checkpoint.provenance),
        "config": dict(job.config),
        "plan": plan_hash(job.plan),
        "aliases": job.plan.aliases(),
        "interface": program.interface.to_json(),
    }


def plan_hash(plan: Plan) -> str:
    """A digest of what the plan does: equal for equal movements of equal tensors, whatever the rules' spelling."""
    digest = hashlib.sha256()
    for name, entry in plan.entries.items():
        sources = [getattr(source, "name", "") for source in entry.sources]
        digest.update(repr((name, entry.declared.storage, sources, entry.stored().nests)).encode())
    return digest.hexdigest()


def tie_warnings(job: Job) -> list[Diagnostic]:
    """Warnings for parameters that the config ties and the checkpoint stores apart, with other values."""
    return [
        Diagnostic(
            code="BU114",
            severity=Severity.WARNING,
            message=f"the config ties `{name}`, and the checkpoint stores other values for it; those are used",
            help="if the model was trained untied, set tie_word_embeddings to false",
            parameter=name,
        )
        for name in check_ties(job.plan, job.checkpoint)
    ]
