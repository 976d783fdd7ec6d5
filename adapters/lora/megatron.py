"""Adapters in Megatron-Bridge's own names: `decoder.layers.0.self_attention.linear_qkv.adapter.linear_in.weight`.

Sources: src/megatron/bridge/peft/{lora,canonical_lora}.py and models/conversion/{peft_bridge,param_mapping}.py of
NVIDIA-NeMo/Megatron-Bridge. `linear_qkv` has the heads group by group: those of q, then k, then v; `linear_fc1` has the
gate before up. `CanonicalLoRA` has separate pairs for each part. Files exported by Megatron-Bridge have peft's names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from bringup.adapters.algebra.expr import S
from bringup.adapters.lora.config import LoraConfig, is_alpha
from bringup.adapters.planning.adapter import Adapter
from bringup.diagnostics import fail
from bringup.graphs.core.axes import sizes_of
from bringup.graphs.core.signature import Declared, Signature

FILE = "run_config.yaml"  # next to a checkpoint of a training run
_PARAMETER = re.compile(r"(?:model\.)?layers\.(\d+)\.(self_attn|mlp)\.(\w+)_proj\.weight")
_NUMBER = re.compile(r"^\s+(dim|alpha):\s*([0-9]+(?:\.[0-9]*)?)\s*$", re.MULTILINE)
_PEFT = re.compile(r"^peft:\s*\n((?:[ \t]+.*\n?|\s*\n)*)", re.MULTILINE)


def tables(signature: Signature) -> tuple[Adapter, ...]:
    """Megatron's names for a decoder's attention and dense layers: fused, and separate."""
    fused, parts = Adapter("Megatron"), Adapter("Megatron, canonical")
    for name, declared in signature.items():
        found = _PARAMETER.fullmatch(name)
        if found is None:
            continue
        layer, block, x = found.groups()
        place = f"decoder.layers.{layer}.{'self_attention' if block == 'self_attn' else 'mlp'}"
        if x in "qkv":
            parts[name] = S(f"{place}.linear_qkv.adapter_{x}.weight", "out in")
            query = signature.get(name.replace(f"{x}_proj", "q_proj"))
            key = signature.get(name.replace(f"{x}_proj", "k_proj"))
            if query and key:
                _attention(fused, f"{place}.linear_qkv.weight", name, x, query, key)
        elif x in ("gate", "up"):
            f = sizes_of(declared.axes)["f"]
            parts[name] = S(f"{place}.linear_fc1.adapter_{x}.weight", "out in")
            both = S(f"{place}.linear_fc1.weight", "out:(f | f) m").split("out", f, f)
            fused[name] = both[("gate", "up").index(x)]
        elif x in ("o", "down"):
            fused[name] = S(f"{place}.linear_{'proj' if x == 'o' else 'fc2'}.weight", "out in")
    return fused, parts


def _attention(table: Adapter, source: str, name: str, x: str, query: Declared, key: Declared) -> None:
    """q, k or v of the fused matrix: each of g groups has the p heads of q, then one of k and one of v."""
    sizes, own = sizes_of(query.axes), sizes_of(key.axes)
    letter = "g" if "g" in own else "h"
    h, g, d = sizes["h"], own[letter], sizes["d"]
    whole = S(source, "(g x d) m", g=g, x=h // g + 2, d=d).mv("(g x d) m -> g x d m", g=g, d=d)
    if x == "q":
        heads = whole.split("x", h // g, 1, 1)[0].mv("g x d m -> (h:(g x) d) m")
        table[name] = heads
    else:
        table[name] = whole.at("x", h // g + "kv".index(x)).mv(f"g d m -> ({letter}:g d) m")


def read_run_config(file: Path) -> LoraConfig:
    """`dim` and `alpha` below `peft:`. Raises BU160 if they are missing."""
    section = _PEFT.search(file.read_text("utf-8", errors="replace"))
    words: Mapping[str, str] = dict(_NUMBER.findall(section[1])) if section else {}
    if not re.fullmatch("0*[1-9][0-9]{0,8}", words.get("dim", "")) or not is_alpha(float(words.get("alpha", 0))):
        help = "use the file that was saved with the adapter; rank and scale are in it only"
        raise fail("BU160", f"`{file}` has no `dim` and `alpha` below `peft`", help=help, file=str(file))
    return LoraConfig(rank=int(words["dim"]), alpha=float(words["alpha"]))
