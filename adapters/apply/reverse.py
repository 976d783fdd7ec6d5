"""The published layout: the same copy nests with source and result swapped."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from bringup.adapters.algebra.computed import Computed
from bringup.adapters.algebra.copy_nest import Nest, row_major
from bringup.adapters.algebra.quantised import is_stored_in_parts
from bringup.adapters.algebra.region import Region
from bringup.adapters.apply.materialise import copy_nest, units
from bringup.adapters.checkpoints.arrays import numpy_dtype
from bringup.adapters.planning.coverage import read_bits
from bringup.adapters.planning.plan import Entry, Plan
from bringup.diagnostics import BringupError, Diagnostic, fail
from bringup.graphs.core.signature import Signature
from bringup.grouping import grouped
from bringup.spec import DTYPES, Shape, TensorInfo

if TYPE_CHECKING:
    import numpy as np

WIDER = {  # the dtypes that represent every value of another
    "float16": ("float32", "float64"),
    "bfloat16": ("float32", "float64"),
    "float32": ("float64",),
    "uint4": ("uint8",),
}
_WHOLE = "export all parameters, from a bundle compiled in the checkpoint's dtype, by rules that have an inverse"
_QUANTISED = "its weights are quantised: export a bundle compiled with --weights packed, or give them in floats"
_ONE_WAY = (
    "this quantised form can be read and not written: keep the checkpoint; `bringup convert` writes the parameters"
)


def reverse(plan: Plan, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The tensors that the plan reads, computed from the parameters' arrays: the inverse of `materialise`, bit for bit
    (except the payload of a NaN that was widened).

    Raises BU117 if that is not possible: for a value without an inverse (or whose inverse has another shape or dtype),
    a dtype that does not represent all values of the tensor's, a tensor with a part that no parameter holds, and one
    for which two parameters have different values.
    """
    targets = _Targets()
    for entry in plan.entries.values():
        targets.claim(entry, entry.region, entry.declared.dtype)
    for target in (*(value for value, _, _ in targets.values.values()), *targets.tensors.values()):
        target.check()
    for name, entry in plan.entries.items():
        array = _fitting(entry, name, arrays.get(name), *entry.declared.storage)
        region = entry.stored()
        unit = entry.declared.dtype if entry.declared.pack or region.word == 1 else region.nests[0].view
        targets.put(entry, name, region, units(array, unit))
    for value, source, _ in sorted(targets.values.values(), key=lambda one: -one[2]):
        targets.invert(value, source)
    return {name: targets.tensors[name].finished() for name in plan.headers if name in targets.tensors}


def irreversible(plan: Plan) -> list[Diagnostic]:
    """BU117 for everything that `reverse` rejects whatever the values, once for each rule and reason.

    A quantised checkpoint is a single reason for all rules.
    """
    targets, found = _Targets(), dict[object, list[tuple[str, BringupError]]]()

    def note(entry: Entry, step: Callable[[], None]) -> None:
        try:
            step()
        except BringupError as error:
            help = error.findings[0].help
            key = help if help in (_QUANTISED, _ONE_WAY) else entry.rule.site
            found.setdefault(key, []).append((entry.declared.name, error))

    for entry in plan.entries.values():
        note(entry, partial(targets.claim, entry, entry.region, entry.declared.dtype))
    broken = {name for refused in found.values() for name, _ in refused}
    for target in (*(value for value, _, _ in targets.values.values()), *targets.tensors.values()):
        if target.entry.declared.name not in broken:
            note(target.entry, target.check)
    return [_grouped(refused) for refused in found.values()]


def _grouped(refused: list[tuple[str, BringupError]]) -> Diagnostic:
    """The first error of a rule, with the names of all its parameters that have one."""
    (first, error), names = refused[0], list(dict.fromkeys(name for name, _ in refused))
    finding = error.findings[0]
    listed = ", ".join(grouped(names))
    return replace(finding, message=finding.message.replace(f"`{first}`", f"`{listed}`", 1), parameter=listed)


def components(plan: Plan) -> list[Plan]:
    """The plan in parts that can be reversed separately: parameters that read the same tensor are in one part."""
    part_of: dict[str, list[str]] = {}  # by tensor, the parameters of its part
    for name, entry in plan.entries.items():
        members = [name]
        for tensor in {info.name for info in entry.tensors}:
            other = part_of.get(tensor, members)
            if other is not members:
                other.extend(members)
                for moved in members:
                    part_of.update((info.name, other) for info in plan.entries[moved].tensors)
                members = other
            part_of[tensor] = members
    parts = {id(members): members for members in part_of.values()}
    return [replace(plan, entries={name: plan.entries[name] for name in members}) for members in parts.values()]


@dataclass(slots=True)
class _Target:
    """A tensor that is being written, or a computed value whose parts parameters hold."""

    info: TensorInfo
    entry: Entry  # the first that writes to it
    nests: list[Nest] = field(default_factory=list[Nest])  # of all that write to it
    names: dict[str, None] = field(default_factory=dict[str, None])  # the parameters that have written to it
    shared: bool = False  # two nests write to the same element
    written: list[tuple[str, Nest, np.ndarray]] = field(default_factory=list["tuple[str, Nest, np.ndarray]"])
    flat: np.ndarray | None = None  # its bytes; if `halves`, a byte for each half
    halves: bool = False

    def check(self) -> None:
        """Raises BU117 if its writers do not cover it; records whether any two of them overlap."""
        bits = math.prod(self.info.shape) * DTYPES[self.info.dtype].bits
        nests = tuple(replace(nest, source=0) for nest in self.nests)
        reader = replace(self.entry, sources=(self.info,), region=Region((), self.info.dtype, nests))
        held = read_bits(Plan(Signature({}), {}, {"": reader}))[self.info.name]
        if held < bits:
            share = f"{100 * held / bits:.3g} % of it ({held} of {bits} bits)"
            raise _refused(self.entry, f"of {self.info.name} the parameters hold only {share}")
        self.shared = held < sum(nest.count * DTYPES[nest.view].bits for nest in nests)

    def put(self, name: str, nest: Nest, flat: np.ndarray) -> None:
        """Writes a parameter's elements. Raises BU117 if another one wrote different values."""
        self.names[name] = None
        if not self.info.shape or math.prod(self.info.shape):
            copy_nest(nest.swapped(), flat, self.seen_as(nest.view))
        if self.shared:
            self.written.append((name, nest, flat))
        for other, earlier, values in self.written[:-1]:
            if not _holds(self.seen_as(earlier.view), earlier, values):
                raise _refused(self.entry, f"{other} and {name} give {self.info.name} different values")

    def seen_as(self, view: str) -> np.ndarray:
        """Its bits, flat and writable, as elements of a dtype; 4-bit elements have a byte each."""
        import numpy as np

        halves = DTYPES[view].bits < 8
        if self.flat is None:
            nbytes = DTYPES[self.info.dtype].nbytes(self.info.shape)
            self.flat, self.halves = np.zeros(nbytes * (1 + halves), np.uint8), halves
        elif halves and not self.halves:
            self.flat, self.halves = units(self.flat, view), True
        elif self.halves and not halves:
            self.flat, self.halves = self.flat[0::2] | self.flat[1::2] << 4, False
        return self.flat if halves else self.flat.view(numpy_dtype(view))

    def finished(self) -> np.ndarray:
        """The array; numpy stores a 4-bit element in a byte, an int4 with its sign."""
        import numpy as np

        flat = self.seen_as(self.info.dtype)
        if self.halves:
            flat = flat[: math.prod(self.info.shape)]
            flat = ((flat ^ 8) - np.uint8(8) if self.info.dtype == "int4" else flat).view(numpy_dtype(self.info.dtype))
        return flat.reshape(self.info.shape)


@dataclass(slots=True)
class _Targets:
    """The targets that the parameters' arrays are written to: tensors by name, and computed values, each once.

    The integer of a value is its depth: the number of values that it is computed from, one from the other. Values of
    greater depth are reversed first.
    """

    tensors: dict[str, _Target] = field(default_factory=dict[str, _Target])
    values: dict[object, tuple[_Target, Computed, int]] = field(
        default_factory=dict[object, tuple[_Target, Computed, int]]
    )

    def claim(self, entry: Entry, region: Region, dtype: str) -> None:
        """Registers what a region in `dtype` will write. Raises BU117 if values would be lost."""
        for nest in region.nests:
            in_words = region.word > 1 and DTYPES[nest.view].bits * region.word == DTYPES[dtype].bits
            if not (in_words or nest.view == dtype or dtype in WIDER.get(nest.view, ())):
                raise _refused(entry, f"{nest.view} became {dtype}")
            self.of(entry, nest.source).nests.append(nest)

    def of(self, entry: Entry, index: int) -> _Target:
        """The target of a source of an entry."""
        source = entry.sources[index]
        if isinstance(source, TensorInfo):
            return self.tensors.setdefault(source.name, _Target(source, entry))
        key = _identity(entry, source)
        if key not in self.values:
            behind = {entry.sources[nest.source].name: None for region in source.inputs for nest in region.nests}
            info = TensorInfo(f"{', '.join(behind)} ({source.name})", source.dtype, source.shape)
            self.values[key] = _Target(info, entry), source, _depth(entry, source)
            for region in source.inputs:
                self.claim(entry, region, region.dtype)
        return self.values[key][0]

    def put(self, entry: Entry, name: str, region: Region, flat: np.ndarray) -> None:
        """Writes the units of a region to its sources."""
        for nest in region.nests:
            self.of(entry, nest.source).put(name, nest, flat)

    def invert(self, value: _Target, source: Computed) -> None:
        """Computes the inputs of a computed value by its inverse, and writes them to their targets."""
        assert source.inverse is not None
        results = source.inverse(value.finished())
        if len(results) != len(source.inputs):
            raise _refused(value.entry, f"the inverse of {source.name} returns {len(results)} of {len(source.inputs)}")
        for region, result in zip(source.inputs, results, strict=True):
            array = _fitting(value.entry, f"the inverse of {source.name}", result, region.shape, region.dtype)
            unit = region.dtype if region.word == 1 else region.nests[0].view
            self.put(value.entry, ", ".join(value.names), region, units(array, unit))


def _identity(entry: Entry, source: Computed) -> object:
    """Equal for sources that compute the same from the same tensors. Raises BU117 if there is no inverse."""
    if source.inverse is None:
        packed = all(_has_inverse(entry, array) for array in source.arrays)
        help = _WHOLE if not is_stored_in_parts(source) else _QUANTISED if packed else _ONE_WAY
        raise _refused(entry, source.name, help)

    def of(index: int) -> object:
        found = entry.sources[index]
        return found.name if isinstance(found, TensorInfo) else _identity(entry, found)

    inputs = [
        (r.shape, r.dtype, r.word, *((replace(n, source=0), of(n.source)) for n in r.nests)) for r in source.inputs
    ]
    return source.name, source.shape, source.dtype, source.run, source.inverse, tuple(inputs)


def _has_inverse(entry: Entry, region: Region) -> bool:
    """Whether every value behind a region has an inverse."""
    sources = (entry.sources[nest.source] for nest in region.nests)
    computed = (source for source in sources if isinstance(source, Computed))
    return all(one.inverse is not None and all(_has_inverse(entry, each) for each in one.inputs) for one in computed)


def _depth(entry: Entry, source: TensorInfo | Computed) -> int:
    """The number of values that are computed one from the other, up to this one; 0 for a tensor."""
    if isinstance(source, TensorInfo):
        return 0
    nests = (nest for region in source.inputs for nest in region.nests)
    return 1 + max((_depth(entry, entry.sources[nest.source]) for nest in nests), default=0)


def _fitting(entry: Entry, name: str, array: np.ndarray | None, shape: Shape, dtype: str) -> np.ndarray:
    """The array, if it has this dtype and shape; otherwise raises BU117."""
    if array is not None and array.shape == shape and array.dtype == numpy_dtype(dtype):
        return array
    got = f"{array.dtype} {list(array.shape)}" if array is not None else "nothing"
    raise _refused(entry, f"{name} returned {got}, not {dtype} {list(shape)}")


def _holds(target: np.ndarray, nest: Nest, flat: np.ndarray) -> bool:
    """Whether the target has the bits that the nest wrote."""
    import numpy as np

    dense = row_major([extent for extent, _, _ in nest.loops])
    found, wanted = (np.zeros(nest.count, target.dtype) for _ in range(2))
    for side, array, copied in ((nest, target, found), (nest.swapped(), flat, wanted)):
        loops = tuple((extent, at, to) for (extent, at, _), to in zip(side.loops, dense, strict=True))
        copy_nest(replace(side, loops=loops, dst=0), array, copied)
    return np.array_equal(found.view(np.uint8), wanted.view(np.uint8))


def _refused(entry: Entry, why: str, help: str = _WHOLE) -> BringupError:
    return fail(
        "BU117",
        f"`{entry.declared.name}` cannot be converted back to tensors of the checkpoint: {why}",
        help=help,
        where=entry.rule.site,
    )
