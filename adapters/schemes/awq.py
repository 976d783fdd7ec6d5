"""AWQ as AutoAWQ publishes it: codes of four bits with a scale and a zero point for each group of inputs.

AutoAWQ's `WQLinear_GEMM` (awq/modules/linear/gemm.py) and `dequantize_gemm` (awq/utils/packing_utils.py): a weight is
(q - zero) · scale. Its `AwqConfig` (awq/models/_config.py) has the words of quant_config.json, `w_bit` and
`q_group_size`, and in `to_transformers_dict` those of config.json, `bits` and `group_size`. vLLM's `AWQConfig`
(quantization/awq.py) reads both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from bringup.adapters.algebra.expr import Expr
from bringup.adapters.algebra.quantised import QuantisedMatrix
from bringup.adapters.schemes.gptq_keys import group_size, outputs, read_notes
from bringup.adapters.schemes.scheme import Scheme, Stored, StoredMatrix
from bringup.graphs.config.fields import Fields
from bringup.graphs.config.unquantized import UnquantizedModules
from bringup.graphs.core.form import Form
from bringup.shown import shown

EARLY = {"bits": "w_bit", "group_size": "q_group_size"}  # the words of quant_config.json
MIDDLE = 8  # the zero point if there are no zero points


@dataclass(frozen=True, slots=True)
class Awq(Stored):
    """`group`: the number of inputs of an output that share a scale; WHOLE for all. `zeros`: whether there are any."""

    scheme: ClassVar[str] = "AWQ"
    parts: ClassVar[tuple[str, ...]] = ("qweight", "qzeros", "scales")
    group: int
    zeros: bool
    unquantized: UnquantizedModules

    @property
    def lists_modules(self) -> bool:
        """Without a list, vLLM reads modules with a float weight as they are (`AWQConfig.maybe_update_config`)."""
        return bool(self.unquantized)

    def matrix(self, weight: StoredMatrix) -> QuantisedMatrix:
        group = f"in/{self.group}"
        parts = {
            "codes": weight.within(_rows(weight.part("qweight", "in out:8", "int32")), f"{outputs(weight)} in"),
            "scales": weight.part("scales", f"{group} out", "float16").mv("group out -> out group"),
        }
        zeros = self.zeros or "qzeros" in weight.tensors
        if zeros:
            parts["zeros"] = weight.within(
                _rows(weight.part("qzeros", f"{group} out:8", "int32")), f"{outputs(weight)} {group}"
            )
        form = Form(
            codes="uint4", block=(1, self.group), scale="float16", zero="uint4" if zeros else "",
            offset=0 if zeros else MIDDLE,
        )  # fmt: skip
        return QuantisedMatrix(self.scheme, form, parts)


@dataclass(frozen=True, slots=True)
class EarlyAwq(Awq):
    """The same, from a config with the words of quant_config.json."""

    block_key: ClassVar[str] = EARLY["group_size"]


def _rows(words: Expr) -> Expr:
    """The codes [out, n] of words [n, out / 8]: a word has those of outputs 0, 2, 4, 6, 1, 3, 5, 7."""
    return words.bits("uint4", "number").mv("n word (odd half) -> (word half odd) n", odd=2, half=4)


def read(words: Fields) -> Awq:
    """Ignores how a program multiplies (`backend`, `do_fuse`, …).

    GPT-QModel writes AWQ with other keys (`QuantizeConfig.to_dict` in gptqmodel/quantization/config.py): the layout as
    `format` and `checkpoint_format` next to `version`, and keys of GPTQ with the one value that AWQ has.
    """
    read_notes(words)
    words.read |= {"do_fuse", "fuse_max_seq_len", "modules_to_fuse"}
    for key, early in EARLY.items():
        if {key, early} <= words.raw.keys() and words.raw[key] != words.raw[early]:
            message = f"config sets `{early}` = {shown(words.raw[early])} and `{key}` = {shown(words.raw[key])}"
            words.error("BU122", f"{message}, which mean the same", early, "remove the one that is wrong")
    words.read |= {*EARLY, *EARLY.values()}
    bits, group = (early if early in words.raw else key for key, early in EARLY.items())
    words.only(bits, 4)
    for key in ("version", "format", "checkpoint_format"):
        words.only(key, "gemm", "GEMM")
    for key in ("desc_act", "lm_head"):
        words.only(key, False)
    for key in ("adapter", "rotation", "dynamic"):
        words.only(key, None)
    zeros = words.get("zero_point", bool, True)
    stored = EarlyAwq if group == EARLY["group_size"] else Awq
    return stored(group_size(words, group), zeros, UnquantizedModules.from_fields(words))


scheme = Scheme(name=Awq.scheme, methods=("awq",), read=read)
