"""Resolves the names of a model and a checkpoint to a graph, an adapter and a plan."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bringup.adapters.checkpoints.bounded_json import read_config
from bringup.adapters.checkpoints.checkpoint import Checkpoint
from bringup.adapters.checkpoints.config_places import IN_CONFIG, ConfigPlaces
from bringup.adapters.checkpoints.memory import dict_checkpoint
from bringup.adapters.checkpoints.model_config import unreadable_config
from bringup.adapters.dialects.dialect import dialect_of, family_of, no_dialect
from bringup.adapters.planning.adapter import Adapter
from bringup.adapters.planning.expected_headers import as_declared, published
from bringup.adapters.planning.plan import Plan, make_plan
from bringup.adapters.sources.open_checkpoint import Access, open_checkpoint
from bringup.adapters.sources.sharded_state import refuse_rank
from bringup.adapters.sources.unknown import dummy_alone, not_there, without_config
from bringup.arguments import FLOAT_DTYPES, choice, mapping, path
from bringup.compile.adapter_file import adapter_of, as_stored
from bringup.compile.auto_dtype import dtype_of
from bringup.compile.planned import planned
from bringup.compile.stand_ins import without_unknown
from bringup.diagnostics import BringupError, Diagnostic, Severity, fail
from bringup.graphs.config.hf_config import architectures, quantisation
from bringup.graphs.core.axes import AxesError
from bringup.graphs.core.graph import Graph
from bringup.graphs.core.options import GraphOptions, as_options, build_graph
from bringup.graphs.drafts import draft_by_tensors
from bringup.graphs.family import Family
from bringup.graphs.identity import check_identity
from bringup.graphs.registry import by_architecture, by_name

Word = str | os.PathLike[str]
DEFAULTS = GraphOptions()
AGAIN = "correct the config and check again"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A model with its checkpoint: everything that is known before a tensor is read."""

    family: Family
    graph: Graph
    adapter: Adapter
    checkpoint: Checkpoint
    plan: Plan
    config: Mapping[str, Any]  # config.json, from which the graph was created
    places: ConfigPlaces = IN_CONFIG  # the files that state its keys
    model: str | None = None  # the name that the user passed; for a file its full path
    adapter_file: str | None = None
    allow: Mapping[str, str] = field(default_factory=dict[str, str])  # accepted config keys, with reasons
    findings: Sequence[Diagnostic] = ()  # on the config: part of the job's check
    unknown: frozenset[str] = frozenset()  # config keys that were replaced by stand-ins
    notice: str = ""  # a note for the user on the choice of checkpoint


def open_job(
    model: Word | None = None,
    checkpoint: Word | Checkpoint | None = None,
    *,
    config: Word | Mapping[str, Any] | None = None,
    adapter: Word | None = None,
    dtype: str = "auto",
    allow: Mapping[str, str] | None = None,
    tokenizer: Word | None = None,
    options: GraphOptions = DEFAULTS,
    access: Access | None = None,
) -> Job:
    """Resolves a model and its checkpoint and plans every parameter.

    `model` is a registry name, a Python file, or None if the checkpoint names its architecture. `checkpoint` None means
    the published checkpoint of the model, or seeded dummy weights if the machine is offline. `config` is a config.json
    to use instead of the checkpoint's; `adapter` a Python file that defines `adapter(config)`. `dtype` is float32,
    bfloat16, float16, or "auto", the checkpoint's own float type. `allow` maps each config key to accept to the reason.
    `tokenizer` is a tokenizer.json, its folder, or a GGUF file, to use instead of the checkpoint's. `options` are the
    graph options of the deployment. `access` controls how the checkpoint is opened: see `open_checkpoint`. Each path is
    a str or a `Path`. Raises BU0xx to BU2xx errors.
    """
    model = None if model is None else path("model", model)
    adapter = None if adapter is None else path("adapter", adapter)
    dtype = choice("dtype", dtype, FLOAT_DTYPES)
    allow = mapping("allow", {} if allow is None else allow, values=str)
    options = as_options(options)
    family, preset, repository = (None, None, None) if model is None else by_name(model)
    opened, notice = _open(checkpoint, repository, model, access or Access())
    given = _config_of(config)
    unreadable = unreadable_config(opened.findings) if opened else []
    if opened and unreadable and given is None:
        raise BringupError(*opened.findings)
    if opened and unreadable:  # the given one takes its place
        opened = replace(opened, findings=[found for found in opened.findings if found not in unreadable])
    family, opened = _in_dialect(family, opened, given)
    found = (opened.config if opened else None) or None  # {} means that there is no config.json
    raw = next((words for words in (given, found, preset) if words is not None), None)
    if raw is None:
        raise _without_config(opened, model)
    named = family is not None
    places = _places_of(config) if config is not None else opened.places if opened else IN_CONFIG
    with places.in_errors():
        family = family or draft_by_tensors(architectures(raw), opened.headers if opened else ())
        family = family or by_architecture(architectures(raw), quantisation(raw))
        check_identity(family, raw, allow, named=named)
        settings, findings = family.load("config").read(raw, allow)
    findings = [*(opened.findings if opened else ()), *findings]
    unknown = frozenset(finding.config_key for finding in findings if finding.stops)
    if unknown:
        raw, settings = _with_stand_ins(family, raw, [*map(places.in_file, findings)], opened, allow, options)
    built = adapter_of(family, opened, adapter, settings)
    graph = build_graph(family.load("graph"), settings, dtype_of(dtype, opened, built), options)
    if opened is None:
        from bringup.adapters.sources.dummy import dummy_checkpoint  # imports hashlib

        rules = built if built.trace else as_stored(built, graph, {}, raw, family, places)[0]
        opened = dummy_checkpoint(published(graph.signature(), rules), raw)
    if tokenizer is not None:
        opened = replace(opened, tokenizer=tokenizer_file(tokenizer))
    built, quantised = as_stored(built, graph, opened.headers, raw, family, places)
    findings = [*findings, *quantised]
    plan = planned(graph, built, opened.headers)
    if opened.gguf and not (dialect_of(family, opened.gguf) or adapter is not None or plan.entries):
        raise no_dialect(opened.gguf, family)  # the family's table has transformers' names
    return Job(
        family=family,
        graph=graph,
        adapter=built,
        checkpoint=opened,
        plan=plan,
        config=raw,
        places=places,
        model=str(Path(model).resolve()) if model and model.endswith(".py") else model,
        adapter_file=str(Path(adapter).resolve()) if adapter else None,
        allow=allow,
        notice=notice,
        findings=findings,
        unknown=unknown,
    )


def replanned(job: Job, raw: Mapping[str, Any]) -> Job:
    """The job with another config. Raises as `open_job` does, AxesError if no graph can have these sizes."""
    settings, findings = job.family.load("config").read(raw, job.allow)
    if any(finding.stops for finding in findings):
        raise BringupError(*findings)
    built = adapter_of(job.family, job.checkpoint, job.adapter_file, settings)
    graph = build_graph(job.family.load("graph"), settings, job.graph.dtype, job.graph.options)
    built, quantised = as_stored(built, graph, job.checkpoint.headers, raw, job.family, job.places)
    findings = [*findings, *quantised]
    plan = planned(graph, built, job.checkpoint.headers)
    stopping = [finding for finding in job.findings if finding.stops]
    known = [finding for finding in findings if finding.config_key not in job.unknown]  # others are about stand-ins
    found = [*job.checkpoint.findings, *stopping, *known]
    return replace(job, graph=graph, adapter=built, plan=plan, config=raw, findings=found)


def _with_stand_ins(
    family: Family,
    raw: Mapping[str, Any],
    findings: Sequence[Diagnostic],
    opened: Checkpoint | None,
    allow: Mapping[str, str] | None,
    options: GraphOptions,
) -> tuple[Mapping[str, Any], Any]:
    """The keys and settings of a config, with inferred values for missing sizes. Raises the findings if none fit."""
    for words in without_unknown(raw, findings, opened.headers) if opened else ():
        settings, again = family.load("config").read(words, allow)
        if not any(finding.stops for finding in again):
            with suppress(AxesError):
                build_graph(family.load("graph"), settings, "float32", options)
                return words, settings
    keys = ", ".join(f"`{finding.config_key}`" for finding in findings if finding.stops)
    message = f"the weights were not checked: their shapes depend on {keys}"
    raise BringupError(*findings, Diagnostic(code="BU145", message=message, severity=Severity.NOTE, help=AGAIN))


def _open(
    checkpoint: Word | Checkpoint | None, repository: str | None, model: str | None, access: Access
) -> tuple[Checkpoint | None, str]:
    """The checkpoint, or None for dummy weights; and a note for the user."""
    if isinstance(checkpoint, Checkpoint):
        return checkpoint, ""
    if checkpoint == "dummy":
        return None, "random dummy weights, as requested"
    if checkpoint == "":
        raise fail("BU005", "the name of the checkpoint is empty", help="give a checkpoint with --checkpoint SRC")
    if checkpoint is not None:
        _ = path("checkpoint", checkpoint)
        opened = open_checkpoint(checkpoint, partial=True, **access._asdict())
        if "path" in opened.provenance:
            refuse_rank(Path(opened.provenance["path"]))
        return opened, ""
    if repository is None:
        message = f"`{model}` has no published checkpoint" if model else "neither a model nor a checkpoint is given"
        raise fail("BU005", message, help="give a checkpoint with --checkpoint SRC")
    try:
        return open_checkpoint(f"hf://{repository}", partial=True, **access._asdict()), ""
    except BringupError as error:
        offline = error.findings[0].code == "BU911"
        if not offline or os.environ.get("CI"):
            raise
        return None, f"offline and not in the cache: `{repository}`; continuing with random dummy weights"


def _in_dialect(
    family: Family | None, opened: Checkpoint | None, given: Mapping[str, Any] | None
) -> tuple[Family | None, Checkpoint | None]:
    """The family of a GGUF file, and its checkpoint with the keys of config.json.

    Raises BU125 and BU227 if there is no family, unless a config.json is given.
    """
    hyper = opened.gguf if opened else None
    if opened is None or hyper is None:
        return family, opened
    family = family or (by_architecture(architectures(given)) if given is not None else family_of(hyper))
    dialect = dialect_of(family, hyper) if family else None
    if dialect is None and given is None:
        raise no_dialect(hyper, family)
    if dialect is None:
        return family, opened
    return family, replace(opened, config=dialect.config(hyper), places=dialect.places(hyper))


def _without_config(opened: Checkpoint | None, model: str | None) -> BringupError:
    """BU127, after the findings on the checkpoint; BU035 for dummy weights of no model."""
    if opened is None and model is None:
        return dummy_alone(help="name a model, or give a config.json with --config FILE")
    place = opened.provenance.get("path") if opened else None
    missing = without_config(f"{opened.source if opened else model}", Path(place) if place else None)
    return BringupError(*(opened.findings if opened else ()), *missing.findings)


def _places_of(config: Word | Mapping[str, Any]) -> ConfigPlaces:
    """Messages name a config by its path, a mapping by the argument's name."""
    return ConfigPlaces("config") if isinstance(config, Mapping) else ConfigPlaces(str(config), path=Path(config))


def tokenizer_file(place: Word) -> Path:
    """The file of a path, or the tokenizer.json in a folder. Raises BU034 if it does not exist."""
    named = Path(path("tokenizer", place))
    file = named / "tokenizer.json" if named.is_dir() else named
    if not file.is_file():
        raise not_there(str(file), help="give a tokenizer.json, or a folder that has one")
    return file


def _config_of(config: Word | Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """The keys and values of a config, which is a file or a mapping."""
    if config is None:
        return None
    if isinstance(config, Mapping):
        return mapping("config", config)
    file = Path(path("config", config))
    if not os.path.lexists(file):
        raise not_there(str(file), help="give the path of a config.json")
    return read_config(file)


def as_job(given: object) -> Job:
    """Checks that the argument of a public function is a job. Raises BU024 otherwise."""
    if isinstance(given, Job):
        return given
    raise fail("BU024", f"`job` is a {type(given).__name__}, not a `Job`", help="pass the result of `bringup.open_job`")


def with_weights(job: Job, weights: Mapping[str, Any]) -> Job:
    """The same job with weights by exact name, as `job_of` takes them, in place of its checkpoint's tensors.

    It has the same tokenizer, and the model, config and adapter that a verification of the bundle needs.
    """
    given = job_of(job.graph, weights)
    checkpoint = replace(given.checkpoint, tokenizer=job.checkpoint.tokenizer)
    return replace(job, adapter=given.adapter, checkpoint=checkpoint, plan=given.plan, notice="")


def in_dtype(job: Job, dtype: str) -> Job:
    """The job with a graph that computes in another dtype: the same modules, rules and tensors."""
    graph = copy(job.graph)
    graph.dtype = dtype
    return replace(job, graph=graph, plan=planned(graph, job.adapter, job.checkpoint.headers))


def job_of(graph: Graph, weights: Mapping[str, Any]) -> Job:
    """A job for a graph and its weights by exact name; each array has the parameter's declared axes."""
    if not isinstance(weights, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]  users' calls are not typed
        raise fail(
            "BU024", f"`weights` is a {type(weights).__name__}, not a dict", help="pass a dict of arrays by name"
        )
    checkpoint = dict_checkpoint(weights, {})
    adapter = as_declared(graph.signature())
    plan = make_plan(graph.signature(), adapter, checkpoint.headers)
    family = Family(name=graph.config.family, graph=type(graph), config=type(graph.config), adapter=adapter)
    return Job(family=family, graph=graph, adapter=adapter, checkpoint=checkpoint, plan=plan, config={})
