"""Graph options: the choices of a deployment that are not in the config of the model."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields
from typing import Any, Self, cast

from bringup.arguments import choice, integer
from bringup.diagnostics import did_you_mean, fail
from bringup.graphs.core.lora import ALL_LINEAR, add_slots

CACHE_DTYPES = ("float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2")
ACTIVATIONS = ("int8", "fp8")


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphOptions:
    """The choices of a deployment: how the same model and weights are computed and stored.

    `cache_dtype` is the dtype of attention caches (keys, values, latents of MLA, keys of an indexer); None is the dtype
    that the model computes in. `quantize` is a recipe for quantising float weights while they are loaded
    (adapters/apply/quantise.py), such as "int8"; None does not quantise. `activations` is the dtype to which
    activations are rounded before a product with a packed weight: "int8" (`ops.quant_linear.in_int8`), or "fp8" if that
    weight is float8 (`ops.fp8_linear.to_fp8`); None does not round. With a `max_lora_rank`, the modules in
    `lora_target_modules`, by PEFT's names, have `max_loras` slots for LoRAs of up to this rank (core/lora.py). Options
    are plain values (text, numbers, tuples of them): they are part of cache keys, and in a bundle's manifest by name.
    Raises BU024 for an invalid value.
    """

    cache_dtype: str | None = None
    quantize: str | None = None
    activations: str | None = None
    max_lora_rank: int = 0
    max_loras: int = 1
    lora_target_modules: tuple[str, ...] = (ALL_LINEAR,)

    def __post_init__(self) -> None:
        if self.cache_dtype is not None:
            choice("cache_dtype", self.cache_dtype, CACHE_DTYPES)
        if self.activations is not None:
            choice("activations", self.activations, ACTIVATIONS)
        integer("max_lora_rank", self.max_lora_rank, minimum=0)
        integer("max_loras", self.max_loras, minimum=1)

    def non_default(self) -> dict[str, Any]:
        """The options that differ from their defaults, by name."""
        return {f.name: value for f in fields(self) if (value := getattr(self, f.name)) != f.default}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The options of `non_default()`, also after a round trip through JSON. Raises BU024 for an unknown name."""
        known = [f.name for f in fields(cls)]
        for name in values:
            if name not in known:
                help = f"{did_you_mean(name, known)} the options are {', '.join(known)}".lstrip()
                raise fail("BU024", f"graphs have no option `{name}`", help=help)
        return cls(**{name: _plain(value) for name, value in values.items()})


def _plain(value: Any) -> Any:
    return tuple(cast("list[Any]", value)) if isinstance(value, list) else value


def as_options(given: object) -> GraphOptions:
    """Checks the `options` argument of a call. Raises BU024 for another type."""
    if isinstance(given, GraphOptions):
        return given
    help = "pass a `bringup.graphs.GraphOptions`"
    raise fail("BU024", f"`options` is a {type(given).__name__}, not a `GraphOptions`", help=help)


_CURRENT: ContextVar[GraphOptions] = ContextVar("graph options", default=GraphOptions())  # noqa: B039  frozen


@contextmanager
def graph_options(options: GraphOptions) -> Generator[None]:
    """Graphs that are built in this block have these options: `with graph_options(options): graph = Llama(config)`."""
    token = _CURRENT.set(options)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def current_options() -> GraphOptions:
    """The options of the graph that is being built; the defaults outside of `graph_options`.

    For `__init__` of layers and graphs. A forward reads what `__init__` stored: an attribute is part of a cache key.
    """
    return _CURRENT.get()


def build_graph(make: Callable[..., Any], config: object, dtype: str, options: GraphOptions) -> Any:
    """`make(config, dtype)`, a graph with these options. Every job builds its graph with this function.

    Raises BU024 for LoRA modules that the graph does not have.
    """
    with graph_options(options):
        graph = make(config, dtype)
    if options.max_lora_rank:
        add_slots(graph, options.lora_target_modules, options.max_loras, options.max_lora_rank)
    return graph
