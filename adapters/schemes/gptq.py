"""GPTQ as AutoGPTQ and GPTQModel publish it: codes of 2, 3, 4 or 8 bits with a scale and a zero point for each group.

AutoGPTQ's `QuantLinear` (auto_gptq/nn_modules/qlinear/qlinear_cuda.py) and GPTQModel's `TorchQuantLinear`
(gptqmodel/nn_modules/qlinear/torch.py): a weight is (q - zero) · scale. Format `gptq` stores zero - 1, modulo the
number of codes; `gptq_v2` stores zero. `g_idx` is the group of each input.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from bringup.adapters.algebra.bit_fields import BitFields
from bringup.adapters.algebra.expr import Expr
from bringup.adapters.algebra.quantised import QuantisedMatrix
from bringup.adapters.schemes.gptq_keys import Selection, outputs, read_groups, read_selection
from bringup.adapters.schemes.scheme import Modules, Scheme, Stored, StoredMatrix, Unread
from bringup.graphs.config.fields import Fields
from bringup.graphs.config.unquantized import UnquantizedModules
from bringup.graphs.core.form import Form
from bringup.spec import TensorInfo

if TYPE_CHECKING:
    import numpy as np

STRAY_BIAS = "a bias of zeros, which AutoGPTQ adds to every matrix"
PLAIN_ORDER = "the groups in the order of the inputs, as `desc_act` says"


@dataclass(frozen=True, slots=True)
class Gptq(Stored):
    """`less` is subtracted from stored zero points. `selection` has the modules that are stored, and their settings."""

    scheme: ClassVar[str] = "GPTQ"
    parts: ClassVar[tuple[str, ...]] = ("qweight", "qzeros", "scales", "g_idx")
    less: int
    selection: Selection
    unquantized: UnquantizedModules = field(default_factory=UnquantizedModules)

    def stores(self, modules: Modules) -> bool:
        return not any(module in self.unquantized for module in modules) and self.selection.groups(modules) is not None

    @property
    def lists_modules(self) -> bool:
        """GPT-QModel writes no list: each of its models has one (`module_tree`), with `shared_expert_gate` left out."""
        return bool(self.selection.endings or self.selection.named or self.unquantized)

    def matrix(self, weight: StoredMatrix) -> QuantisedMatrix:
        groups = self.selection.groups(weight.modules)
        assert groups is not None  # otherwise the config does not list it as quantised
        width, group = groups.bits, f"in/{groups.size}"
        codes = numbers(weight.part("qweight", f"in*{width}:32 out", "int32"), width, axis=0)
        zeros = numbers(weight.part("qzeros", f"{group} out*{width}:32", "int32"), width, axis=1, plus=self.less)
        parts = {
            "codes": weight.within(codes.mv("in out -> out in"), f"{outputs(weight)} in"),
            "scales": weight.part("scales", f"{group} out", "float16").mv("group out -> out group"),
            "zeros": weight.within(zeros.mv("group out -> out group"), f"{outputs(weight)} {group}"),
        }
        if groups.own_order:
            parts["index"] = weight.part("g_idx", "in", "int32")
        dtype = "uint8" if width == 8 else "uint4"
        form = Form(codes=dtype, block=(1, groups.size), scale="float16", zero=dtype, index=groups.own_order)
        return QuantisedMatrix(self.scheme, form, parts)

    def unread_parts(self) -> Iterator[Unread]:
        yield Unread("bias", STRAY_BIAS, requires="qweight", wrong=_not_zero)
        yield Unread("g_idx", PLAIN_ORDER, requires="qweight", wrong=partial(_other_order, self.selection))


def numbers(words: Expr, width: int, *, axis: int, plus: int = 0) -> Expr:
    """The integers along an axis of words [rows, columns], the first in the low bits, plus `plus`."""
    if plus or width not in (4, 8):
        return BitFields(words, width, axis, plus)
    order = "(row number) column" if axis == 0 else "row (column number)"
    return words.bits(f"uint{width}", "number").mv(f"row column number -> {order}")


def _not_zero(modules: Modules, parts: Mapping[str, TensorInfo], bias: np.ndarray) -> str:
    return "" if not bias.any() else "the model has no bias there, and this one is not zero"


def _other_order(selection: Selection, modules: Modules, parts: Mapping[str, TensorInfo], index: np.ndarray) -> str:
    import numpy as np

    groups = selection.groups(modules)
    if groups is None:
        return ""
    plain = np.arange(index.size) // (groups.size or index.size)
    if np.array_equal(index, plain):
        return ""
    return "`desc_act` is false, and these are not the groups in the order of the inputs: set it to true"


def read(words: Fields) -> Gptq:
    """Ignores how it was quantised (`damp_percent`, `dataset`, `true_sequential`, …) and `sym`: without effect."""
    less = read_format(words)
    groups = read_groups(words)
    return Gptq(less, read_selection(words, groups), UnquantizedModules.from_fields(words))


def read_format(words: Fields) -> int:
    """The number that is subtracted from stored zero points, by the format's name."""
    key = "checkpoint_format" if words.raw.get("checkpoint_format") is not None else "format"
    if words.raw.get(key) is not None:
        words.choice(key, ("gptq", "gptq_v2"), "gptq")
    words.read |= {"checkpoint_format", "format"}
    return 0 if words.raw.get(key) == "gptq_v2" else 1


scheme = Scheme(name=Gptq.scheme, methods=("gptq",), read=read)
