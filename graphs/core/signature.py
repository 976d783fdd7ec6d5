"""A graph's signature: every parameter's exact name, axes, shape and dtype. Pure data; no torch."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bringup.diagnostics import fail
from bringup.graphs.core.axes import Axes, shape_of, show, sized, sizes_of
from bringup.graphs.core.packing import Pack, misfit, stored
from bringup.shown import shown
from bringup.spec import DTYPES, Shape, Site
from bringup.system.os_errors import reason

MOST = 1 << 48  # elements along an axis: one byte each would fill the address space of x86-64


@dataclass(frozen=True, slots=True)
class Declared:
    """One parameter. `axes` are logical; `pack` packs sub-byte values along one of them into words."""

    name: str
    axes: Axes
    dtype: str
    pack: Pack | None = None
    site: Site | None = None
    # of its layers' classes: `Module.checkpoint_names`
    checkpoint_names: tuple[tuple[str, str | tuple[str, ...]], ...] = ()

    @property
    def storage(self) -> tuple[Shape, str]:
        """Shape and dtype of the array that holds it."""
        return stored(self.axes, self.dtype, self.pack)

    @property
    def nbytes(self) -> int:
        shape, dtype = self.storage
        return DTYPES[dtype].nbytes(shape)


@dataclass(frozen=True, slots=True)
class Signature(Mapping[str, Declared]):
    """name → Declared, in order of declaration."""

    params: Mapping[str, Declared]

    def __getitem__(self, name: str) -> Declared:
        return self.params[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.params)

    def __len__(self) -> int:
        return len(self.params)

    def to_json(self) -> str:
        """One line for each parameter, so that a diff shows what changed; `from_json` reads it."""
        rows = {
            d.name: {"axes": show(d.axes), "sizes": sizes_of(d.axes), "dtype": d.dtype, "pack": d.pack}
            for d in self.values()
        }
        body = ",\n".join(f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in rows.items())
        return f"{{\n{body}\n}}\n"

    @classmethod
    def from_json(cls, path: str | Path) -> Signature:
        """Reads the output of `to_json`. Raises BU123 for another file."""
        try:
            rows = json.loads(Path(path).read_text("utf-8"))
            return cls({name: _declared(name, row) for name, row in rows.items()})
        except (OSError, ValueError) as error:
            raise fail("BU123", f"`{path}` is not a signature file: {reason(error)}") from error
        except (KeyError, TypeError, AttributeError, RecursionError) as error:
            raise fail("BU123", f"`{path}` is JSON, but was not written by `to_json`") from error


def _declared(name: str, row: dict[str, Any]) -> Declared:
    sizes, dtype, pack = row["sizes"], row["dtype"], row["pack"]
    if wrong := [axis for axis, size in sizes.items() if type(size) is not int or not 1 <= size <= MOST]:
        raise ValueError(f"axis `{wrong[0]}` of `{name}` has the size {shown(sizes[wrong[0]])}")
    axes = sized(row["axes"], sizes)
    if 0 in shape_of(axes) or dtype not in DTYPES:
        raise ValueError(f"`{name}` has an axis without a size, or dtype `{dtype}`")
    if unknown := sizes.keys() - {node.name for axis in axes for node in axis.walk()}:
        raise ValueError(f"`{name}` has no axis `{min(unknown)}`")
    if pack is None:
        return Declared(name, axes, dtype)
    axis, count = pack
    if type(axis) is not str or type(count) is not int:
        raise ValueError(f"`{name}` is packed as {shown(pack)}: expected an axis and a number")
    if fault := misfit(Pack(axis, count), axes, dtype):
        raise ValueError(f"`{name}`: {fault[0]}")
    return Declared(name, axes, dtype, Pack(axis, count))
