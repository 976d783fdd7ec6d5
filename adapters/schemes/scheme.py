"""The protocol of quantisation schemes: the keys of a config, and the tensors that store a matrix.

Each scheme is one file in this folder. A package adds its own by an entry point of `bringup.schemes`.
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
    """The alternative names of one module; `table`: whether it is a table of rows, an `Embedding`."""

    table: bool = False

    @classmethod
    def named(cls, *names: str, table: bool) -> Self:
        modules = cls(names)
        modules.table = table
        return modules


@dataclass(frozen=True, slots=True)
class StoredMatrix:
    """One matrix of a checkpoint, for `Stored.matrix`.

    `modules` are its alternative names without `.weight`, with and without the common prefix: lists of converters have
    either. `tensors` are the parts that the checkpoint has, by the names in `Stored.parts`; dummy weights have none.
    `part` creates the expression of one, and `within` removes padding: see `Stored.matrix`. `sized` is the expression
    that a function creates from the rows and columns of the matrix, once they are known; 0 if no rule determines them.
    """

    modules: Modules
    tensors: Mapping[str, TensorInfo]
    part: Callable[..., Expr]
    within: Callable[[Expr, str], Expr]
    by_rows: Callable[[QuantisedMatrix], Expr]
    sized: Callable[[Callable[[int, int], Expr]], Expr]

    @property
    def module(self) -> str:
        """Its name in the checkpoint."""
        return self.modules[0]


class Unread(NamedTuple):
    """A part that no weight is computed from, with the reason; `requires`: it applies only if the module has this part.

    `wrong` is called with the module's alternative names, the parts of its matrix in the checkpoint by name, and the
    tensor; it returns what is wrong with the values, or "". Without it they are not read.
    """

    part: str
    why: str
    requires: str = ""
    wrong: Callable[[Modules, Mapping[str, TensorInfo], np.ndarray], str] | None = None


class Stored(ABC):
    """The storage of a checkpoint's matrices, by its config. An object has the settings, and no state."""

    scheme: ClassVar[str]
    """The scheme's name in messages."""
    parts: ClassVar[tuple[str, ...]]
    """The parts that may replace `M.weight`: `qweight` for `M.qweight`."""
    parts_of_experts: ClassVar[tuple[str, ...]] = ()
    """The parts that may replace a tensor `T` of all experts, without `.weight` at its end: `blocks` for `T_blocks`."""
    keeps_order: ClassVar[bool] = False
    """Whether a matrix that is published as [in, out] (GPT-2's) is stored as [in, out] by this scheme too."""
    leaves_experts: ClassVar[bool] = False
    """Whether converters may leave experts as they are, without a list in the config: the tensors decide."""
    unread: ClassVar[Mapping[str, str]] = {}
    """Parts that no weight is computed from, with the reason: {`input_scale`: "of activations, which …"}."""
    block_key: ClassVar[str] = "group_size"
    """The config's key for the number of values that share a scale."""
    unquantized: UnquantizedModules

    def stores(self, modules: Modules) -> bool:
        """Whether the config states that a module's matrices are stored in this way; see `StoredMatrix.modules`."""
        return not any(module in self.unquantized for module in modules)

    @property
    def lists_modules(self) -> bool:
        """Whether the config lists the modules that are quantised, or the others. If not, the tensors decide."""
        return True

    def unread_parts(self) -> Iterator[Unread]:
        """`unread`, and parts that may be dropped only for certain values."""
        return (Unread(part, why) for part, why in self.unread.items())

    @property
    def all_parts(self) -> tuple[str, ...]:
        """`parts`, and the other parts of a module that are needed to read a matrix."""
        return self.parts

    @abstractmethod
    def matrix(self, weight: StoredMatrix) -> Expr:
        """The matrix [rows, columns] = [out, in]; for experts in one tensor [experts, rows, columns].

        `weight.part(name, axes, dtype)` is the checkpoint's tensor of a part. `axes` describe its storage: `out` and
        `in` are the matrix's dimensions, `in/128` one value for each 128 of them, `in:8` words of 8, `in*3:32` 3 words
        of 32, `in*2` several, `all` every element, a number any other dimension and `any` one of any size:
        `weight.part("qweight", "in:8 out", "int32")`; "" is a scalar. `dtype` is that of dummy weights. The expression
        continues with `.bits`, `.mv` and so on, by position. A tensor whose shape differs only in dimensions of 1
        matches. `weight.within(expr, axes)` removes the padding of the last word or block, and `weight.by_rows` creates
        the matrix from a single row in which blocks continue from row to row.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    """`name` is used in messages, `methods` are the `quant_method`s of config.json that the scheme reads.

    `read` returns the storage of the checkpoint's matrices for the keys of a `quantization_config`, and marks the keys
    as read: every unknown key is a finding (`Fields`). It returns None if nothing is quantised. `dequantise`: how a
    user obtains plain weights with the scheme's own tools, for messages.
    """

    name: str
    methods: tuple[str, ...]
    read: Callable[[Fields], Stored | None]
    dequantise: str = ""
