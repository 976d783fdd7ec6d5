"""The formats of `packed.py` with the config keys that their writers store in config.json."""

from __future__ import annotations

from functools import partial
from typing import Any

from tests.quantised import packed
from tests.quantised.formats import Format


def awq(group: int = 32) -> Format:
    words = {"quant_method": "awq", "bits": 4, "group_size": group, "version": "gemm", "zero_point": True}
    return Format(words, partial(packed.awq, group=group))


def gptq(bits: int = 4, group: int = 32, *, sym: bool = False, act_order: bool = False, version: int = 1) -> Format:
    words: dict[str, Any] = {
        "quant_method": "gptq", "bits": bits, "group_size": group, "sym": sym, "desc_act": act_order,
        "damp_percent": 0.01, "true_sequential": True, "lm_head": False,
    }  # fmt: skip
    if version == 2:
        words["checkpoint_format"] = "gptq_v2"
    return Format(words, partial(packed.gptq, bits=bits, group=group, sym=sym, act_order=act_order, version=version))


def auto_round(packing: str = "auto_round:auto_gptq", *, sym: bool = True, version: int = 1) -> Format:
    """Its GPTQ layout, as intel/auto-round writes it; the version is that of GPTQ's zero points."""
    words = {
        "quant_method": "auto-round", "packing_format": packing, "bits": 4, "group_size": 32,
        "sym": sym, "data_type": "int", "iters": 0, "autoround_version": "0.14.2",
        "extra_config": {"lm_head": {"bits": 16, "data_type": "float"}},
    }  # fmt: skip
    return Format(words, partial(packed.gptq, bits=4, group=32, sym=sym, version=version))


def int8() -> Format:
    words = {"quant_method": "bitsandbytes", "load_in_8bit": True, "load_in_4bit": False, "llm_int8_threshold": 6.0}
    return Format(words, packed.int8)


def four_bits(kind: str = "nf4", block: int = 64, *, nested: bool = False) -> Format:
    words = {
        "quant_method": "bitsandbytes", "load_in_4bit": True, "load_in_8bit": False, "bnb_4bit_quant_type": kind,
        "bnb_4bit_use_double_quant": nested, "bnb_4bit_compute_dtype": "bfloat16", "llm_int8_skip_modules": None,
    }  # fmt: skip
    return Format(words, partial(packed.four_bits, kind=kind, block=block, nested=nested))


FORMATS = {
    "awq": awq(),
    "awq of rows": awq(-1),
    "gptq": gptq(),
    "gptq 2": gptq(2),
    "gptq 3": gptq(3),
    "gptq 3 v2": gptq(3, version=2),
    "gptq 8 v2 of rows": gptq(8, -1, version=2),
    "gptq symmetric by activations": gptq(sym=True, act_order=True),
    "gptq 2 v2 by activations": gptq(2, version=2, act_order=True),
    "auto-round": auto_round(),
    "auto-round without offset": auto_round("auto_round:gptqmodel", sym=False, version=2),
    "int8": int8(),
    "nf4": four_bits(),
    "nf4 nested": four_bits(nested=True),
    "fp4 of 128": four_bits("fp4", 128),
    "nf4 across rows": four_bits(block=256),
}
