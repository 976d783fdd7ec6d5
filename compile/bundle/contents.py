"""The contents of a bundle other than its program: weights, tokenizer, manifest."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from bringup.adapters.algebra.computed import Computed
from bringup.adapters.apply.left_out import refuse_wrongly_left_out
from bringup.adapters.planning.plan import Entry, Plan
from bringup.compile.bundle.folder import TOKENIZER
from bringup.compile.bundle.function_identity import identity_of
from bringup.compile.bundle.weights_file import write_weights as write_file
from bringup.compile.check.by_name import in_terms_of_weights
from bringup.compile.check.value_stats import Soundness
from bringup.compile.check.values import read_parameter
from bringup.compile.job import Job
from bringup.diagnostics import BringupError, Diagnostic, Report
from bringup.graphs.core.module import Const
from bringup.spec import DTYPES, TensorInfo
from bringup.system.os_errors import need_room

if TYPE_CHECKING:
    import numpy as np

    from bringup.compile.program.export_options import Layout
    from bringup.compile.program.program import Interface
    from bringup.compile.targets.selection import Selection
    from bringup.compile.text.tokenizer import Tokenizer


def write_weights(
    job: Job, context: int, path: Path, advance: Callable[[float], None], warn: Callable[[Diagnostic], None]
) -> int:
    """Writes every parameter once, and the computed tables. Returns the number of bytes.

    Raises BU133 if parameters have NaN or infinity, BU115 if the values of a dropped tensor do not permit to drop it;
    `warn` receives warnings about values.
    """
    refuse_wrongly_left_out(job.plan, job.checkpoint.read)
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
        try:
            array = read_parameter(job, stored[name])
        except BringupError as error:
            findings = (replace(found, parameter=found.parameter or name) for found in error.findings)
            raise BringupError(*findings) from error
        sound.look(stored[name], array)
        return array

    write_file(path, infos, make, advance)
    job.checkpoint.refuse_changed()
    findings = [*sound.findings(job.plan)]
    report = Report(findings=in_terms_of_weights(job.plan, findings) if job.adapter.by_name else findings)
    for finding in report.warnings:
        warn(finding)
    report.raise_if_errors()
    return path.stat().st_size


def tokenizer_of(job: Job) -> Tokenizer | None:
    """The checkpoint's tokenizer, if it has one; stop tokens are the config's if no file of the tokenizer has them.

    Raises the errors of `load_tokenizer`.
    """
    if job.checkpoint.tokenizer is None:
        return None
    from bringup.compile.text.sidecar_files import end_ids
    from bringup.compile.text.tokenizer import load_tokenizer

    found = load_tokenizer(job.checkpoint.tokenizer)
    return found if found.eos else replace(found, eos=end_ids(job.config.get("eos_token_id")))


def write_tokenizer(tokenizer: Tokenizer | None, folder: Path) -> None:
    """Writes the tokenizer to the bundle's folder, if there is one."""
    if tokenizer:
        from bringup.compile.text.tokenizer import to_folder

        to_folder(tokenizer, folder / TOKENIZER)


def manifest_of(
    job: Job, target: str, selection: Selection, layout: Layout, interface: Interface, inputs_key: str
) -> dict[str, Any]:
    """The manifest of a bundle; `seal` adds the tools' versions and the files' digests.

    `target` is the name that the user passed, possibly an alias. `target_package` is the distribution of its target; ""
    for bringup itself. `inputs_key` is equal for compiles with the same result, see `bundle_key`.
    """
    return {
        "target": selection.name,
        "target_package": selection.package,
        "target_options": dict(selection.options),
        "target_argument": target,
        "model": job.graph.config.family,
        "model_argument": job.model and _written(job.model),
        "adapter": job.adapter_file and _written(job.adapter_file),
        "allow": dict(job.allow),
        "dtype": job.graph.dtype,
        "graph_options": job.graph.options.non_default(),
        "max_seq_len": layout.context,
        "max_input_len": layout.max_input_len,
        "vocab_size": job.graph.config.vocab_size,
        "recompute_lengths": job.graph.recompute_lengths(),
        "states_vary_past": job.graph.states_vary_past(),
        "main_states": list(job.graph.main_states) if job.graph.inputs else None,
        "weights": "dummy" if job.checkpoint.is_dummy else "checkpoint",
        "provenance": _written(dict(job.checkpoint.provenance)),
        "config": dict(job.config),
        "plan": plan_hash(job.plan),
        "aliases": job.plan.aliases(),
        "interface": interface.to_json(),
        "inputs_key": inputs_key,
    }


def _written(value: Any) -> Any:
    """Paths as valid UTF-8, which a manifest requires: an invalid byte of a name becomes `\\xff`, as in messages."""
    if isinstance(value, dict):
        items = cast("dict[Any, Any]", value)
        return {_written(key): _written(inner) for key, inner in items.items()}
    if isinstance(value, list):
        return [_written(inner) for inner in cast("list[Any]", value)]
    return os.fsencode(value).decode("utf-8", "backslashreplace") if isinstance(value, str) else value


def plan_hash(plan: Plan) -> str:
    """A digest of a plan: equal for equal movements of equal tensors, however the rules are written.

    A computed value is identified by its inputs, and by the functions' source and settings.
    """
    digest = hashlib.sha256()
    functions = Functions()
    for name, entry in plan.entries.items():
        digest.update(repr((name, entry.declared.storage, *movement(entry, functions))).encode())
    return digest.hexdigest()


class Functions:
    """The identities of functions, each computed once: those of one rule are used by many parameters."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[object, str]] = {}

    def of(self, function: object) -> str:
        """As `identity_of`."""
        known = self._known.get(id(function))
        if known is None:  # the object is stored, so that its id is not reused
            known = self._known[id(function)] = function, identity_of(function)
        return known[1]


def movement(entry: Entry, functions: Functions) -> tuple[object, ...]:
    """The content of a parameter as values whose `repr` is equal in every process: its sources, and all positions."""
    region = entry.stored()
    sources = [
        (source.name, source.dtype, source.shape) if isinstance(source, TensorInfo) else _computed(source, functions)
        for source in entry.sources
    ]
    return sources, region.word, region.nests


def _computed(source: Computed, functions: Functions) -> tuple[object, ...]:
    inputs = [(part.shape, part.dtype, part.word, part.nests) for part in source.inputs]
    run = functions.of(source.run)
    return source.name, source.dtype, source.shape, source.exact, source.block, source.grains, run, inputs
