"""The choice for one compile: a target, and a value for each of its options."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bringup.adapters.apply.fuse import lay_out
from bringup.arguments import invalid_value, mapping
from bringup.compile.cache.engine_files import tools
from bringup.compile.cache.source_digest import digests
from bringup.compile.cache.store import Inputs, Store
from bringup.compile.job import Job
from bringup.compile.program.trace_cached import EncodedProgram, StageCodec
from bringup.compile.targets.module_store import ModuleStore
from bringup.compile.targets.registry import BUILT_IN, Registered, find, of_bundle
from bringup.compile.targets.requirements import check_installed
from bringup.compile.targets.target import Estimate, Option, Options, Target
from bringup.diagnostics import BringupError, did_you_mean, fail
from bringup.graphs.ops.lowering import OpLowering
from bringup.grouping import first_few

if TYPE_CHECKING:
    from bringup.graphs.core.graph import Graph
    from bringup.spec import TensorInfo

MOST = 20  # values of an option that a message lists


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """A target with all its options. `registered` has its distribution and its source files."""

    registered: Registered
    options: Options = field(default_factory=dict[str, str])

    @property
    def target(self) -> Target:
        return self.registered.target

    @property
    def name(self) -> str:
        return self.target.name

    @property
    def package(self) -> str:
        """The distribution of the target; "" for bringup itself."""
        return self.registered.package

    @property
    def form(self) -> StageCodec:
        """The encoding of traced stages, and the other inputs of its result."""
        target = self.target
        owner = target.stages_of or target
        return StageCodec(
            name=owner.name,
            encode=target.encode,
            files=self.registered.files,
            tools=self._tools(owner),
            key=owner.cache_key({name: option.default for name, option in owner.options.items()}),
            ops=OpLowering(opaque=target.opaque, implementations=target.implementations),
            layout=target.layout,
            fixed_sizes=target.fixed_sizes,
            prepare=target.prepare,
        )

    def laid_out(self, job: Job) -> Job:
        """The job with the plan of the target's buffers, which its layout computes from the parameters."""
        layout = self.target.layout(job.graph)
        return job if layout is None else replace(job, plan=lay_out(job.plan, layout))

    def _tools(self, target: Target) -> str:
        return tools((*target.requires, *([self.package] if self.package else [])))

    def settings(self) -> Inputs | None:
        """The inputs of the target's results other than source files, for a key; None if they are unknown."""
        own = self.target.cache_key(self.options)
        if own is None:
            return None
        return {
            "target": self.name,
            "target tools": self._tools(self.target),
            **{f"target option {name}": value for name, value in self.options.items()},
            **{f"target key {name}": value for name, value in own.items()},
        }

    def check_cache_dtype(self, graph: Graph) -> None:
        """Raises BU024 for a dtype of attention caches that the target does not support."""
        chosen, known = graph.options.cache_dtype, self.target.cache_dtypes
        if chosen is not None and chosen != graph.dtype and chosen not in known:
            message = f"target `{self.name}` does not support `{chosen}` as the dtype of caches"
            others = _supporting(lambda target: chosen in target.cache_dtypes)
            raise fail("BU024", message, help=f"it supports {first_few(known, MOST)}{others}")

    def check_activations(self, graph: Graph) -> None:
        """Raises BU024 for activations that the target's products with packed weights do not support."""
        chosen, known = graph.options.activations, self.target.activations
        if chosen is not None and chosen not in known:
            message = f"target `{self.name}` does not support `{chosen}` as activations of packed weights"
            help = f"it supports {first_few(known, MOST)}" if known else "leave --activations out"
            others = ", ".join(f"`{target.name}`" for target in BUILT_IN if chosen in target.activations)
            raise fail("BU024", message, help=f"{help}; {others} support {chosen}")

    def check_loras(self, graph: Graph) -> None:
        """Raises BU412 for slots of LoRAs that the target does not support."""
        if graph.options.max_lora_rank and not self.target.supports_loras:
            message = f"target `{self.name}` does not support LoRAs at run time"
            help = "leave --max-lora-rank out, or compile for `cpu`, `iree-cpu`, `torch` or `cuda:sm_90`"
            raise fail("BU412", message, help=help)

    def check_installed(self) -> None:
        """Raises BU922 for a distribution that the target requires and that is not installed."""
        check_installed(self.registered, self.target.requires)

    def lower(
        self, program: EncodedProgram, folder: Path, store: Store, dump_dir: Path | None
    ) -> AbstractContextManager[Callable[[], str]]:
        """As `Target.lower`."""
        modules = ModuleStore(store, self.inputs)
        return self.target.lower(program, folder, self.options, modules, dump_dir)

    def estimate(self, weights: Sequence[TensorInfo]) -> Estimate:
        """As `Target.estimate`."""
        return self.target.estimate(weights, self.options)

    def inputs(self) -> Inputs | None:
        """The inputs of the target's results, source files among them; None if they are unknown."""
        sources, settings = digests(self.registered.files), self.settings()
        return None if sources is None or settings is None else {**sources, **settings}


def select(name: object, options: object = None) -> Selection:
    """The target of a name, with values for some of its options: texts, numbers, or True and False for yes and no.

    Raises BU006 for an unknown target, BU024 for an unknown option and for an invalid value.
    """
    return _selected(find(name), {} if options is None else mapping("target_options", options))


def selection_of(manifest: Mapping[str, Any]) -> Selection:
    """The target of a bundle with the options that it was compiled with. Raises as `of_bundle` and `select` do."""
    return _selected(of_bundle(manifest), manifest.get("target_options") or {})


def _selected(registered: Registered, given: Mapping[str, object]) -> Selection:
    target = registered.target
    for name in given:
        if name not in target.options:
            known = list(target.options)
            listed = f"target `{target.name}` has {', '.join(known) if known else 'no options'}"
            help = did_you_mean(name, known) or listed + _supporting(lambda each, name=name: name in each.options)
            raise fail("BU024", f"`{target.name}` has no option `{name}`", help=help)
    values = {name: _value(name, option, given[name]) for name, option in target.options.items() if name in given}
    return Selection(
        registered=registered,
        options={name: values.get(name, option.default) for name, option in target.options.items()},
    )


def _value(name: str, option: Option, value: object) -> str:
    """A value as the text in manifests and keys."""
    if value == option.default:  # also an empty text, which manifests have
        return option.default
    help = "use a string or an integer"
    if not isinstance(value, str | int):
        raise _refused(name, value, help)
    try:
        text = {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
    except ValueError:  # Python does not format a number with so many digits
        raise fail("BU024", f"the value of the target option `{name}` has too many digits", help=help) from None
    if not text or not text.isprintable():
        raise _refused(name, value, help)
    if known := option.known():
        if text not in known:
            others = _supporting(lambda each: name in each.options and text in each.options[name].known())
            valid = f"valid values: {first_few(known, MOST)}{others}"
            raise _refused(name, value, f"{did_you_mean(text, known)} {valid}".lstrip())
        return text
    if option.kind == "integer":
        try:
            return str(int(text))
        except ValueError:
            raise _refused(name, value, "use an integer") from None
    return text


def _supporting(has: Callable[[Target], bool]) -> str:
    """`; --target … supports it`: the first built-in target that supports it; "" for none."""
    return next((f"; `--target {target.name}` supports it" for target in BUILT_IN if has(target)), "")


def _refused(name: str, value: object, help: str) -> BringupError:
    return invalid_value(f"the target option `{name}`", value, help)
