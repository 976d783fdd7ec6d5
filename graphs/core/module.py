"""The parts of a graph: Module, and its typed leaves Param (loaded), State (cached between steps), Const (computed).

Names come from the attribute hierarchy, exactly as in torch: `transformer.h.0.attn.c_attn.weight`. Building a graph
needs no torch; `to_torch` converts it to an `nn.Module` with the same forward.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

from bringup.graphs.core.axes import Axes, AxesError, Sizes, leaf_names, shape_of, show, sized
from bringup.graphs.core.packing import read_pack, stored
from bringup.graphs.core.step import CacheSizes
from bringup.spec import DTYPES, Shape, Site

if TYPE_CHECKING:  # in a forward, leaves are tensors and modules can be called
    import numpy as np
    from torch import Tensor as _Leaf
    from torch.nn import Module as _Callable
else:
    _Leaf = _Callable = object


Words = Mapping[str, str | tuple[str, ...]]
NO_SIZES: Sizes = {}
NO_WORDS: Words = {}
_LAYERS = os.path.join(os.path.dirname(os.path.dirname(__file__)), "layers", "")  # noqa: PTH118, PTH120  a text to compare with others


class Leaf(_Leaf):
    """A declared tensor. The sizes of its axes are a mapping or keywords; a missing size is an AxesError.

    `dtype` None means the model's dtype. `site` is the line that declared it, for diagnostics.
    """

    def __init__(self, axes: str, sizes: Sizes = NO_SIZES, /, *, dtype: str | None = None, **more: int) -> None:
        assert dtype is None or dtype in DTYPES, dtype
        sizes = {**sizes, **more}
        self.axes: Axes = sized(axes, sizes)
        self.declared_dtype = dtype
        self.site = Site.outside(__file__, _LAYERS)
        unknown = sizes.keys() - {n.name for axis in self.axes for n in axis.walk()}
        if unknown:
            raise AxesError(f"sizes given for {sorted(unknown)}, which axes `{axes}` do not name")

    def structural_key(self) -> tuple[Any, ...]:
        """Equal for leaves that differ only in their values."""
        return (type(self), self.axes, self.declared_dtype)


class Param(Leaf):
    """A parameter: loaded from a checkpoint, exact name and shape.

    Sub-byte types declare how they are stored: `Param("in out", dtype="int4", pack="out:8")` is logically [in, out] and
    stored as int32 [in, out / 8], eight values to a word along `out`, first value in the low bits. `forward` sees the
    words. Raises BU302 for a pack that its axes and dtype cannot have.
    """

    def __init__(
        self, axes: str, sizes: Sizes = NO_SIZES, /, *, dtype: str | None = None, pack: str = "", **more: int
    ) -> None:
        super().__init__(axes, {**sizes, **more}, dtype=dtype)
        self.pack = read_pack(pack, self.axes, dtype)
        missing = [name for name in leaf_names(self.axes) if not _size(self.axes, name)]
        if missing:
            raise AxesError(f"no size given for axis `{missing[0]}` of `{axes}`")

    def structural_key(self) -> tuple[Any, ...]:
        return (*super().structural_key(), self.pack)

    def stored(self, dtype: str) -> tuple[Shape, str]:
        """Shape and dtype of the array that holds it, as `forward` sees it; `dtype` is the model's."""
        return stored(self.axes, self.declared_dtype or dtype, self.pack)


class State(Leaf):
    """A tensor that steps update in place, such as a K/V cache. The size of the first axis is set at export.

    `slot`: one row for each token, in the blocks of `Step.block_table`. `sequence`: one row for each sequence, that of
    `Step.rows`. With a `window`, queries attend to the last `window` positions only. If that needs fewer rows than the
    context, each sequence has a ring of rows instead, and the row of a position is position % ring.

    `lora`: one row for each LoRA slot, as many as declared. Steps read them, and only the host writes them.

    `of` is a state of an earlier layer, with the same axes, dtype and window: this one is the same memory, which the
    layer only reads. See `Graph.borrowed`.
    """

    def __init__(
        self,
        axes: str,
        sizes: Sizes = NO_SIZES,
        /,
        *,
        dtype: str | None = None,
        window: int | None = None,
        of: State | None = None,
        **more: int,
    ) -> None:
        super().__init__(axes, sizes, dtype=dtype, **more)
        self.window, self.of = window, of
        if of is not None and (*super().structural_key(), window) != of.structural_key()[:-1]:
            raise AxesError(f"`{show(self.axes)}` is not the shape, dtype and window of the state that it would share")

    def structural_key(self) -> tuple[Any, ...]:
        """Equal for states that share those of different layers."""
        return (*super().structural_key(), self.window, self.of is not None)

    def kind(self, sizes: CacheSizes) -> str:
        """The kind of its rows, as in `program.StateSpec`: "paged", "ring", "sequence" or "lora"; or "borrowed"."""
        if self.of is not None:
            return "borrowed"
        if self.axes[0].name in ("sequence", "lora"):
            return self.axes[0].name
        return "ring" if sizes.ring(self.window) else "paged"

    def sized(self, sizes: CacheSizes) -> Shape:
        """The shape for caches of these sizes. The rings of all sequences are concatenated, that of padding last."""
        ring = sizes.ring(self.window)
        known = {"slot": sizes.rows * ring if ring else sizes.slots, "sequence": sizes.rows}
        return shape_of(tuple(axis.sized(known) for axis in self.axes))


class Const(Leaf):
    """A table that is computed, not loaded (rope, ALiBi): never part of the signature.

    `table(n)` returns the float32 array; n is the number of positions that the program is exported for.
    """

    def __init__(self, axes: str, table: Callable[[int], np.ndarray], **sizes: int) -> None:
        super().__init__(axes, sizes, dtype="float32")
        self.table = table


def _size(axes: Axes, name: str) -> int:
    sizes = [node.size for axis in axes for node in axis.walk() if node.name == name]
    if not sizes:
        raise AxesError(f"no axis `{name}` in `{show(axes)}`")
    return sizes[0]


Kind = TypeVar("Kind", bound=Leaf)


class Module(_Callable):
    """A part of a graph: attributes that are leaves, Modules or lists of Modules form the hierarchy.

    `recompute_past` is a number of tokens, for modules that process a longer sequence in another way: once a sequence
    is longer, its states are recomputed from its first token. `varies_past` is a number of tokens, for modules whose
    states of a longer sequence depend on its length when they were computed: other sequences with the same tokens
    cannot share them.

    `checkpoint_names`: the names in checkpoints of sections of this class's parameter names, like `names` of
    `Adapter.with_`, over which they take precedence. Those of an inner module take precedence over those of an outer
    one.

    `packable`: the parameters of this class that its forward also supports in packed form (`layers.packed_weight`).

    `lora_parameters`: the parameters to which its forward applies LoRAs, if it has slots for them (`core.lora`).
    """

    recompute_past: int | None = None
    varies_past: int | None = None
    checkpoint_names: ClassVar[Words] = {}
    packable: ClassVar[tuple[str, ...]] = ()
    lora_parameters: ClassVar[tuple[str, ...]] = ()

    if not TYPE_CHECKING:

        def __init__(self) -> None:
            pass

    def children(self) -> Iterator[tuple[str, Leaf | Module]]:  # type: ignore[override]  torch's yields modules only
        """Direct parts by name; the items of a list are `name.0`, `name.1`, …"""
        for name, value in vars(self).items():
            if isinstance(value, Leaf | Module):
                yield name, value
            else:
                yield from ((f"{name}.{i}", item) for i, item in enumerate(_modules(name, value)))

    def parts(self) -> Iterator[Module]:
        """This module and every module below it."""
        yield self
        for _, part in self.children():
            if isinstance(part, Module):
                yield from part.parts()

    def leaves(self, kind: type[Kind], prefix: str = "") -> Iterator[tuple[str, Kind]]:
        """Every leaf of a kind below this module, by full name, in order of declaration."""
        for name, value in self.children():
            if isinstance(value, Module):
                yield from value.leaves(kind, f"{prefix}{name}.")
            elif isinstance(value, kind):
                yield prefix + name, value

    def parameter_checkpoint_names(
        self, prefix: str = "", outer: Words = NO_WORDS
    ) -> dict[str, tuple[tuple[str, str | tuple[str, ...]], ...]]:
        """The `checkpoint_names` of each parameter below, by full name."""
        own = {**outer, **self.checkpoint_names}
        found: dict[str, tuple[tuple[str, str | tuple[str, ...]], ...]] = {}
        for name, value in self.children():
            if isinstance(value, Module):
                found |= value.parameter_checkpoint_names(f"{prefix}{name}.", own)
            elif own and isinstance(value, Param):
                found[prefix + name] = tuple(own.items())
        return found

    def structural_key(self) -> tuple[Any, ...]:
        """Equal for two modules that compute the same function of their weights: same class, settings and leaves."""
        parts = {name.partition(".")[0] for name, _ in self.children()}
        own: dict[str, Any] = {k: v for k, v in vars(self).items() if k not in parts}
        inner = tuple((name, part.structural_key()) for name, part in self.children())
        return (type(self), sorted(own.items()), inner)


class Windowed(Module):
    """A module whose states have a window. `ring` is the number of rows of a sequence's ring in a program, see `State`.

    `to_torch` sets it; None means paged states.
    """

    ring: int | None = None

    def __init__(self, window: int | None) -> None:
        super().__init__()
        self.window = window


def _modules(name: str, value: object) -> list[Module]:
    """The modules of a list attribute. Raises TypeError for items that would have no name."""
    if not isinstance(value, list | tuple | dict | set):
        return []
    held = cast(Any, value)
    items: list[object] = list(held.values() if isinstance(value, dict) else held)
    modules = [item for item in items if isinstance(item, Module)]
    plain = not modules and not any(isinstance(item, Leaf) for item in items)
    if plain or (isinstance(value, list) and len(modules) == len(items)):
        return modules
    raise TypeError(f"`{name}` is a {type(held).__name__} that holds parameters or modules; use a list of modules only")


def packable(module: Module, prefix: str = "") -> set[str]:
    """The parameters below a module that its layers also support in packed form, by full name."""
    found = {f"{prefix}{name}" for name in module.packable}
    for name, part in module.children():
        if isinstance(part, Module):
            found |= packable(part, f"{prefix}{name}.")
    return found
