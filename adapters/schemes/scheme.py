"""What a quantisation scheme is: the words of a config, and the tensors that it stores a matrix in.

One file a scheme in this folder. A package adds its own by an entry point of `bringup.schemes`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Self

from bringup.adapters.algebra.expr import Expr
from bringup.adapters.algebra.quantised import QuantisedMatrix
from bringup.graphs.config.fields import Fields
from bringup.graphs.config.unquantized import UnquantizedModules
from bringup.spec import TensorInfo

if TYPE_CHECKING:
    import numpy as np


class Modules(tuple[str, ...]):
    """The ways to write one module's name; `table`: whether it is a table of rows, an `Embedding`."""

    table: bool = False

    @classmethod
    def named(cls, *names: str, table: bool) -> Self:
        modules = cls(names)
        modules.table = table
        return modules


@dataclass(frozen=True, slots=True)
class StoredMatrix:
    """One matrix of a checkpoint, for `Stored.matrix`.

    `modules` are the ways to write its name without `.weight`, with and without what all names begin with: lists of
    converters have either. `tensors` are the parts that the checkpoint has, by the names in `Stored.parts`; dummy
    weights have none. `part` makes the expression of one, and `within` leaves out padding: see `Stored.matrix`.
    """

    modules: Modules
    tensors: Mapping[str, TensorInfo]
    part: Callable[..., Expr]
    within: Callable[[Expr, str], Expr]
    by_rows: Callable[[QuantisedMatrix], Expr]

    @property
    def module(self) -> str:
        """The name as the checkpoint has it."""
        return self.modules[0]


class Unread(NamedTuple):
    """A part that no weight is computed from, with the reason; `requires`: only where the module has this part, too.

    `wrong` is given the ways to write the module's name, the parts that the checkpoint has of its matrix, by name, and
    the tensor; it says what is wrong with the values, "" where nothing is. Without it they are not read.
    """

    part: str
    why: str
    requires: str = ""
    wrong: Callable[[Modules, Mapping[str, TensorInfo], np.ndarray], str] | None = None


class Stored(ABC):
    """How a checkpoint stores its matrices, as its config says. An object has the settings, and no state."""

    scheme: ClassVar[str]
    """What messages call it."""
    parts: ClassVar[tuple[str, ...]]
    """What may stand for `M.weight`: `qweight` for `M.qweight`."""
    parts_of_experts: ClassVar[tuple[str, ...]] = ()
    """What may stand for a tensor `T` of all experts, which has no `.weight` at its end: `blocks` for `T_blocks`."""
    keeps_order: ClassVar[bool] = False
    """Whether a matrix that is published as [in, out] (GPT-2's) is stored as [in, out] by this scheme too."""
    unread: ClassVar[Mapping[str, str]] = {}
    """Parts that no weight is computed from, with the reason: {`input_scale`: "of activations, which …"}."""
    block_key: ClassVar[str] = "group_size"
    """The config's word for how many values share a scale."""
    unquantized: UnquantizedModules

    def stores(self, modules: Modules) -> bool:
        """Whether the config says that the matrices of a module are stored so; see `StoredMatrix.modules`."""
        return not any(module in self.unquantized for module in modules)

    def unread_parts(self) -> Iterator[Unread]:
        """`unread`, and what may be left out for its values only."""
        return (Unread(part, why) for part, why in self.unread.items())

    @property
    def all_parts(self) -> tuple[str, ...]:
        """`parts`, and what else of a module a matrix is read with."""
        return self.parts

    @abstractmethod
    def matrix(self, weight: StoredMatrix) -> Expr:
        """The matrix [rows, columns] = [out, in]; of experts in one tensor [experts, rows, columns].

        `weight.part(name, axes, dtype)` is the checkpoint's tensor of a part. `axes` say how it is stored: `out` and
        `in` for the matrix's dimensions, `in/128` for one value each 128 of them, `in:8` for words of 8, `in*3:32` for
        3 words of 32, `in*2` for several, `all` for every element, a number for any other dimension and `any` for one
        of any size: `weight.part("qweight", "in:8 out", "int32")`; "" is a scalar. `dtype` is that of dummy weights.
        The expression goes on with `.bits`, `.mv` and so on, by position. Where the tensor's shape is the same but for
        dimensions of 1, it fits. `weight.within(expr, axes)` cuts off what fills up the last word or block, and
        `weight.by_rows` makes the matrix of one row in which blocks run on from row to row.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    """`name` is what messages call it, `methods` the `quant_method`s of config.json that stand for it.

    `read` makes of the words of a `quantization_config` what the checkpoint's matrices are stored as, and ticks them
    off: every word that it does not know is a finding (`Fields`). None where nothing is quantised.
    `dequantise`: how a user obtains plain weights with the scheme's own tools, for messages.
    """

    name: str
    methods: tuple[str, ...]
    read: Callable[[Fields], Stored | None]
    dequantise: str = ""
