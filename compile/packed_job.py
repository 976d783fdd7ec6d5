"""Derives a job with packed parameters, as the checkpoint stores them, if graph and rules allow it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any, cast

from bringup.adapters.algebra.computed import Computed
from bringup.adapters.apply.packed import CannotPack, Packed, packed
from bringup.adapters.apply.parallel import Parallel
from bringup.adapters.apply.rank_plan import Stages
from bringup.adapters.apply.shares import shares
from bringup.adapters.planning.plan import Entry, Plan
from bringup.adapters.schemes.input_scales import NAMES
from bringup.compile.job import Job
from bringup.compile.targets.selection import Selection
from bringup.diagnostics import fail
from bringup.graphs.core.graph import Graph
from bringup.graphs.core.module import Module, Param, packable
from bringup.graphs.core.packed_form import PackedForm
from bringup.graphs.layers.packed_weight import PackedWeight
from bringup.grouping import grouped

WEIGHTS_FORMS = ("auto", "float", "packed")


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedJob:
    """`job` has the packed graph and plan. `names` are the packed parameters; `floats` has the reason for each other
    parameter that the checkpoint stores quantised."""

    job: Job
    names: tuple[str, ...] = ()
    floats: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def summary(self) -> str:
        """For the stage line; "" if the checkpoint has no quantised weights."""
        if not self.names and not self.floats:
            return ""
        packed = f"{len(self.names)} parameters packed"
        if not self.floats:
            return packed
        reasons: dict[str, list[str]] = {}
        for name, reason in self.floats.items():
            reasons.setdefault(reason, []).append(name)
        listed = "; ".join(f"{', '.join(grouped(names))}: {reason}" for reason, names in reasons.items())
        return f"{packed}, {len(self.floats)} dequantised ({listed})"


def pack_job(job: Job) -> PackedJob:
    """The job with packed weights. The graph's modules with packed parameters are copies."""
    tried = _tried(job.plan, packable(job.graph))
    found = {name: result for name, result in tried.items() if isinstance(result, Packed)}
    floats = {name: result for name, result in tried.items() if isinstance(result, str)}
    if not found:
        return PackedJob(job=job, floats=floats)
    packer = _Packer({name: each.packed for name, each in found.items()}, job.graph.options.activations)
    graph = cast("Graph", packer.packed(job.graph))
    return PackedJob(job=replace(job, graph=graph, plan=_plan(job.plan, graph, found)), names=(*found,), floats=floats)


def weights_of(job: Job, form: str, selection: Selection) -> tuple[Job, str]:
    """The job that is compiled, and for the user the form of its weights, "" if the checkpoint permits only one.

    `form` is float, packed, or auto: packed if the target supports it. Raises BU410 if packed is requested and no
    weight of the checkpoint can be, BU411 if the target does not support it.
    """
    supported = selection.target.supports_packed
    if form == "packed" and not supported:
        message = f"target `{selection.name}` does not support packed weights"
        raise fail("BU411", message, help="leave --weights out, or compile for one of bringup's own targets")
    if form == "float" and job.graph.options.activations:
        message = "--weights float leaves no packed weight, and --activations is of products with these"
        raise fail("BU410", message, help="leave --activations or --weights out")
    if form == "float" or not supported:
        count = sum(map(_is_quantised, job.plan.entries.values()))
        why = "as requested" if form == "float" else f"target {selection.name} does not support packed weights"
        return job, f"{count} parameters dequantised: {why}" if count else ""
    found = pack_job(job)
    if not found.names and (form == "packed" or job.graph.options.activations):
        why = found.summary or "the checkpoint has no quantised matrix"
        option = "--weights" if form == "packed" else "--activations"
        raise fail("BU410", f"no weight can stay packed: {why}", help=f"leave {option} out")
    if job.graph.options.activations == "fp8" and not _multiplies_fp8(found.job.graph):
        message = "--activations fp8 is of products with matrices in float8 e4m3, and the checkpoint has none"
        raise fail("BU410", message, help="leave --activations out")
    return found.job, found.summary


def _multiplies_fp8(graph: Module) -> bool:
    """Whether there is a packed weight whose products round activations to float8."""
    return any(isinstance(module, PackedWeight) and bool(module.activations) for module in graph.parts())


def as_compiled(job: Job, manifest: Mapping[str, Any]) -> Job:
    """The job as a bundle contains it: with the bundle's packed weights."""
    return pack_job(job).job if manifest.get("weights_form") == "packed" else job


def form_of(compiled: Job, job: Job) -> str:
    """The form of weights for a bundle's manifest; `compiled` is the job, `job` the same before packing."""
    return "float" if compiled is job else "packed"


def _is_quantised(entry: Entry) -> bool:
    return any(isinstance(source, Computed) and (source.form or source.formless) for source in entry.sources)


def tensors_of_quantised(plan: Plan) -> frozenset[str]:
    """The tensors that weights are computed from which the checkpoint stores in few bits: codes, scales, zero points.

    Not the scales of activations: no weight depends on these.
    """
    quantised = {name for name, entry in plan.entries.items() if _is_quantised(entry)}
    read = (tensor for tensor, parameter in plan.required.items() if parameter in quantised)
    return frozenset(tensor for tensor in read if not tensor.endswith(NAMES))


def packed_shares(job: Job, parallel: Parallel) -> list[int]:
    """Bytes of each rank's parameters, packed if they can be; [] if the checkpoint has no quantised weights.

    Raises the errors of `rank_plan` for ranks that do not fit.
    """
    if not any(map(_is_quantised, job.plan.entries.values())):
        return []
    stages = Stages.of(job.graph)
    layers = packable(job.graph)

    def held(part: Plan, tied: Collection[str]) -> tuple[int]:
        tried = _tried(part, layers)
        found = {name: result.packed.nbytes for name, result in tried.items() if isinstance(result, Packed)}
        entries = ((name, entry) for name, entry in part.entries.items() if name not in tied)
        return (sum(found.get(name, entry.declared.nbytes) for name, entry in entries),)

    return [nbytes for (nbytes,) in shares(job.plan, parallel, stages, held, apart=layers)]


def _tried(plan: Plan, layers: Collection[str]) -> dict[str, Packed | str]:
    """The packed form of each parameter that the checkpoint stores quantised, or the reason why there is none.

    `layers` are the parameters whose layers support packed weights.
    """
    known: dict[tuple[int, str], Packed | str | None] = {}
    found: dict[str, Packed | str] = {}
    for name, entry in plan.entries.items():
        if not _is_quantised(entry):
            continue
        key = id(entry.region), entry.declared.dtype  # identical layers are packed once
        if key not in known:
            try:
                known[key] = packed(entry)
            except CannotPack as reason:
                known[key] = str(reason)
        if (result := known[key]) is not None:
            fits = name in layers or isinstance(result, str)
            found[name] = result if fits else "its layer does not support packed weights"
    return found


@dataclass(frozen=True, slots=True)
class _Packer:
    """Packs parameters of these names; products with them round activations (`GraphOptions.activations`)."""

    forms: Mapping[str, PackedForm]
    activations: str | None

    def packed(self, module: Module, prefix: str = "") -> Module:
        """A copy of a module in which its parameters are packed; the names of these begin with `prefix`."""
        if not any(name.startswith(prefix) for name in self.forms):
            return module
        changed = copy(module)
        for key, value in vars(module).items():
            name = prefix + key
            if isinstance(value, Param) and name in self.forms:
                changed.__dict__[key] = self._weight(value, self.forms[name])
            elif isinstance(value, Module):
                changed.__dict__[key] = self.packed(value, f"{name}.")
            elif isinstance(value, list) and any(isinstance(item, Module) for item in cast("list[Any]", value)):
                items = cast("list[Module]", value)
                changed.__dict__[key] = [self.packed(item, f"{name}.{i}.") for i, item in enumerate(items)]
        return changed

    def _weight(self, param: Param, form: PackedForm) -> PackedWeight:
        weight = PackedWeight(param.axes, form, self.activations)
        for _, part in weight.leaves(Param):
            part.site = param.site
        return weight


def _plan(plan: Plan, graph: Graph, found: Mapping[str, Packed]) -> Plan:
    """The plan of a packed graph."""
    signature = graph.signature()

    def entries() -> Iterator[tuple[str, Entry]]:
        for name, entry in plan.entries.items():
            if name not in found:
                yield name, replace(entry, declared=signature[name])
                continue
            for number, part in enumerate(found[name].packed.form.parts()):
                full = f"{name}.{part.name}"
                yield full, found[name].entry(number, signature[full], entry)

    return replace(plan, signature=signature, entries=dict(entries()))
