"""What stands in a bundle beside its program: weights, tokenizer, manifest."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from bringup.adapters.planning.plan import Plan
from bringup.compile.bundle.folder import TOKENIZER
from bringup.compile.bundle.weights_file import write_weights as write_file
from bringup.compile.check.value_stats import Soundness
from bringup.compile.check.values import read_parameter
from bringup.compile.job import Job
from bringup.diagnostics import Diagnostic, Report
from bringup.graphs.core.module import Const
from bringup.spec import DTYPES, TensorInfo
from bringup.system.os_errors import need_room

if TYPE_CHECKING:
    import numpy as np

    from bringup.compile.program.export_options import Layout
    from bringup.compile.program.program import Interface
    from bringup.compile.text.tokenizer import Tokenizer


def write_weights(
    job: Job, context: int, path: Path, advance: Callable[[float], None], warn: Callable[[Diagnostic], None]
) -> int:
    """Every parameter once, and the computed tables. Gives the bytes written.

    Raises BU133 where parameters hold NaN or infinity; `warn` hears what else is odd about their values.
    """
    sound = Soundness()
    aliases = job.plan.aliases()
    stored = {name: entry for name, entry in job.plan.entries.items() if name not in aliases}
    tables = {name: leaf.table(context) for name, leaf in job.graph.leaves(Const)}
    infos = [TensorInfo(name, entry.declared.storage[1], entry.declared.storage[0]) for name, entry in stored.items()]
    infos += [TensorInfo(name, "float32", table.shape) for name, table in tables.items()]

    need_room(path.parent.parent, sum(DTYPES[info.dtype].nbytes(info.shape) for info in infos))

    def make(name: str) -> np.ndarray:
        if name in tables:
            return tables[name]
        array = read_parameter(job, stored[name])
        sound.look(name, array)
        return array

    write_file(path, infos, make, advance)
    report = Report(findings=list(sound.findings(job.plan)))
    for finding in report.warnings:
        warn(finding)
    report.raise_if_errors()
    return path.stat().st_size


def tokenizer_of(job: Job) -> Tokenizer | None:
    """The checkpoint's tokenizer, if it has one; it ends texts as the config says where no file of its own does.

    Raises what `load_tokenizer` does.
    """
    if job.checkpoint.tokenizer is None:
        return None
    from bringup.compile.text.tokenizer import load_tokenizer

    found = load_tokenizer(job.checkpoint.tokenizer)
    ends = job.config.get("eos_token_id")
    return found if found.eos or type(ends) is not int else replace(found, eos=frozenset({ends}))


def write_tokenizer(tokenizer: Tokenizer | None, folder: Path) -> None:
    """Into the bundle's folder, where there is one."""
    if tokenizer:
        from bringup.compile.text.tokenizer import to_folder

        to_folder(tokenizer, folder / TOKENIZER)


def manifest_of(
    job: Job, target: str, lowering: str, layout: Layout, interface: Interface, inputs_key: str
) -> dict[str, Any]:
    """What a bundle says of itself; `seal` adds the tools' versions and the files' digests.

    `inputs_key` is equal for bundles that would come out equal, see `bundle_key`.
    """
    return {
        "target": lowering,
        "asked_target": target,
        "model": job.graph.config.family,
        "asked_model": job.model and _written(job.model),
        "adapter": job.adapter_file and _written(job.adapter_file),
        "allow": dict(job.allow),
        "dtype": job.graph.dtype,
        "max_seq_len": layout.context,
        "vocab_size": job.graph.config.vocab_size,
        "recompute_lengths": job.graph.recompute_lengths(),
        "weights": "dummy" if job.checkpoint.is_dummy else "checkpoint",
        "provenance": _written(dict(job.checkpoint.provenance)),
        "config": dict(job.config),
        "plan": plan_hash(job.plan),
        "aliases": job.plan.aliases(),
        "interface": interface.to_json(),
        "made_from": inputs_key,
    }


def _written(value: Any) -> Any:
    """Paths as UTF-8, which a manifest is: a byte of a name that is none becomes `\\xff`, as messages show it."""
    if isinstance(value, dict):
        items = cast("dict[Any, Any]", value)
        return {_written(key): _written(inner) for key, inner in items.items()}
    return os.fsencode(value).decode("utf-8", "backslashreplace") if isinstance(value, str) else value


def plan_hash(plan: Plan) -> str:
    """A digest of what the plan does: equal for equal movements of equal tensors, whatever the rules' spelling."""
    digest = hashlib.sha256()
    for name, entry in plan.entries.items():
        sources = [getattr(source, "name", "") for source in entry.sources]
        digest.update(repr((name, entry.declared.storage, sources, entry.stored().nests)).encode())
    return digest.hexdigest()
