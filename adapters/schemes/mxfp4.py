"""MXFP4 as gpt-oss is published: the experts' matrices in blocks of 32 float4 values with one exponent each.

OCP Microscaling Formats specification 1.0, section 5: a value is e2m1 · 2^(scale - 127).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from bringup.adapters.algebra.quantised import QuantisedMatrix
from bringup.adapters.schemes.scheme import Scheme, Stored, StoredMatrix
from bringup.graphs.config.fields import Fields
from bringup.graphs.config.unquantized import UnquantizedModules
from bringup.graphs.core.form import Form

BLOCK = 32  # values of a row that share a scale
FORM = Form(codes="float4_e2m1fn", block=(1, BLOCK), scale="float8_e8m0fnu")


@dataclass(frozen=True, slots=True)
class Mxfp4(Stored):
    """Two values in each byte, the first in the low bits."""

    scheme: ClassVar[str] = "MXFP4"
    parts: ClassVar[tuple[str, ...]] = ()
    parts_of_experts: ClassVar[tuple[str, ...]] = ("blocks", "scales")
    unquantized: UnquantizedModules

    def matrix(self, weight: StoredMatrix) -> QuantisedMatrix:
        blocks = weight.part("blocks", f"out in/{BLOCK} {BLOCK // 2}", "uint8").bits("float4_e2m1fn", "half")
        codes = blocks.mv("e out block byte half -> e out (block byte half)")
        scales = weight.part("scales", f"out in/{BLOCK}", "float8_e8m0fnu").bits("float8_e8m0fnu")
        return QuantisedMatrix(self.scheme, FORM, {"codes": codes, "scales": scales})


def read(words: Fields) -> Mxfp4:
    words.read |= {"dequantize"}
    return Mxfp4(UnquantizedModules.from_fields(words))


scheme = Scheme(
    name=Mxfp4.scheme,
    methods=("mxfp4",),
    read=read,
    dequantise="transformers: `from_pretrained(…, quantization_config=Mxfp4Config(dequantize=True))`, then "
    "`save_pretrained`",
)
