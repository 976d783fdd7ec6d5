"""The valid quantised checkpoints from which mutations are created, and the same models dequantised to floats."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from bringup.adapters.sources.open_checkpoint import open_checkpoint
from tests.check.drafts import LLAMA, ROOT, Draft, Family
from tests.quantised.checkpoints import write
from tests.quantised.formats import FORMATS, Format
from tests.quantised.int4_formats import FORMATS as INT4

MIXTRAL = replace(LLAMA, name="mixtral", rules=ROOT / "adapters/mixtral.py")
DEEPSEEK = replace(LLAMA, name="deepseek_v3", rules=ROOT / "adapters/deepseek_v3.py")


@dataclass(frozen=True)
class Base:
    """A model of tests/quantised/checkpoints.py in a format."""

    family: Family
    model: str
    form: Format


STORED = {
    "llama_awq": Base(LLAMA, "llama of words", INT4["awq"]),
    "llama_gptq": Base(LLAMA, "llama of words", INT4["gptq"]),
    "llama_gptq_by_activations": Base(LLAMA, "llama of words", INT4["gptq symmetric by activations"]),
    "llama_nf4": Base(LLAMA, "llama of words", INT4["nf4"]),
    "llama_int8": Base(LLAMA, "llama of words", FORMATS["ct-int8"]),
    "llama_int4": Base(LLAMA, "llama of words", FORMATS["ct-int4"]),
    "llama_int4_zeros": Base(LLAMA, "llama of words", FORMATS["ct-int4-zeros"]),
    "llama_fp8": Base(LLAMA, "llama of words", FORMATS["ct-fp8-rows"]),
    "llama_fp8_tensor": Base(LLAMA, "llama of words", FORMATS["fp8-inv"]),
    "llama_nvfp4": Base(LLAMA, "llama of words", FORMATS["modelopt-nvfp4-config"]),
    "llama_mxfp4": Base(LLAMA, "llama of words", FORMATS["ct-mxfp4"]),
    "mixtral_int4": Base(MIXTRAL, "mixtral of words", FORMATS["ct-int4"]),
    "deepseek_v3_gptq": Base(DEEPSEEK, "deepseek_v3 of words", INT4["gptq"]),
}


@cache
def _written(name: str) -> tuple[Draft, Draft]:
    base = STORED[name]
    with TemporaryDirectory() as folder:
        places = write(base.model, base.form, Path(folder))
        return _draft(base.family, places[0]), _draft(base.family, places[1])


def _draft(family: Family, place: Path) -> Draft:
    opened = open_checkpoint(place)
    tensors = {name: opened.read(info).copy() for name, info in opened.headers.items()}
    return Draft(family, dict(opened.config or {}), tensors)


def stored(name: str) -> Draft:
    """The checkpoint as it is stored."""
    return _written(name)[0]


def exact(name: str) -> Draft:
    """The model in the floats that the stored one stands for."""
    return _written(name)[1]
