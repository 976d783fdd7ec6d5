"""An adapter that is a function of arrays: its rules follow from running it on a checkpoint's headers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, cast

from bringup.adapters.algebra.expr import Expr, Source
from bringup.adapters.algebra.region import Region
from bringup.adapters.algebra.results import site_of
from bringup.adapters.algebra.traced import Step, Traced, plain_region
from bringup.adapters.planning.adapter import Adapter
from bringup.adapters.planning.rules import Rule
from bringup.diagnostics import did_you_mean, fail
from bringup.graphs.core.axes import Axes, AxesError, shape_of
from bringup.graphs.core.signature import Signature
from bringup.spec import DTYPES, Site, TensorInfo

Function = Callable[[Mapping[str, Any]], Mapping[str, Any]]


class Tensors(Mapping[str, Any]):
    """A checkpoint's tensors by name, traced. A missing name is BU101."""

    def __init__(self, headers: Mapping[str, TensorInfo]) -> None:
        self.headers = headers

    def __getitem__(self, name: str) -> Traced:
        info = self.headers.get(name)
        if info is None:
            hint = did_you_mean(name, self.headers) or "`bringup inspect` lists the names"
            raise fail("BU101", f"the adapter's function reads `{name}`, which the checkpoint does not have", help=hint)
        dtype = "float32" if DTYPES[info.dtype].block else info.dtype
        return Traced(Step((Source(name, "", {}),), plain_region), info.shape, dtype)

    def __iter__(self) -> Iterator[str]:
        return iter(self.headers)

    def __len__(self) -> int:
        return len(self.headers)

    def __contains__(self, name: object) -> bool:
        return name in self.headers


def traced(function: Function, *, name: str = "") -> Adapter:
    """The adapter of `function(tensors)`, which returns {parameter: array} for {tensor of the checkpoint: array}.

    The function moves elements with numpy (`algebra.traced.FUNCTIONS`, indices, ranges), and computes with `compute`.
    It is called with a checkpoint's headers, so that its plan is proved before a tensor is read. Arrays have the
    parameters' shapes, in the declared order of axes; only the function determines which axis is which. `drop` lists
    tensors that it does not read. Dummy weights are not possible, because there are no headers (BU118).
    """
    adapter = Adapter(name or getattr(function, "__name__", "traced"))
    site = site_of(function) or Site.outside(__file__)
    adapter.trace = partial(_on, function, site)
    return adapter


def _on(
    function: Function, site: Site, adapter: Adapter, signature: Signature, headers: Mapping[str, TensorInfo]
) -> Adapter:
    """The adapter with a rule for each parameter. Raises BU101 for an absent tensor, BU004 for a result with a name
    that no parameter has, or that is not a traced tensor."""
    found = cast("object", function(Tensors(headers)))
    if not isinstance(found, Mapping):
        message = f"the adapter's function returns {_shown(found)}, not its parameters"
        raise fail("BU004", message, help="return {parameter: tensor}", where=site)
    found = cast("Mapping[str, object]", found)
    for name, array in found.items():
        if not isinstance(array, Traced):
            message = f"the adapter's function returns {_shown(array)} for `{name}`, not a tensor that it read"
            help = "`compute` returns arrays, from tensors that the function reads"
            raise fail("BU004", message, help=help, where=site)
    unknown = [parameter for parameter in found if parameter not in signature]
    if unknown:
        message = f"the adapter's function returns `{unknown[0]}`, which the graph does not have"
        hint = did_you_mean(str(unknown[0]), signature) or "`bringup check` lists the parameters that have no rule"
        raise fail("BU004", message, help=hint, where=site)
    arrays = cast("Mapping[str, Traced]", found)
    rules = [Rule(name, _as_parameter(array, signature[name].axes), site) for name, array in arrays.items()]
    return replace(adapter, rules=[*adapter.rules, *rules], trace=None)


def _shown(found: object) -> str:
    return "None" if found is None else f"a {type(found).__name__}"


def _as_parameter(traced: Traced, axes: Axes) -> Expr:
    """The expression that fills a parameter of these axes. For another shape it raises AxesError when it is planned."""

    def run(region: Region) -> Region:
        if region.shape != shape_of(axes):
            raise AxesError(f"the function returns shape {list(region.shape)}, the parameter {list(shape_of(axes))}")
        return replace(region, axes=axes)

    return Step((traced.expr,), run)
