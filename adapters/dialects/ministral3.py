"""Ministral 3 in GGUF: Llama's tensors, and the settings of yarn and of the growth of queries.

Architecture `mistral3`: `Mistral3Model.Ministral3Model` of llama.cpp's conversion/mistral3.py, and its
conversion/mistral.py. Files of Mistral Small 3 have it too, without these settings: the dialect of `llama` reads them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bringup.adapters.checkpoints.gguf_rope import rope_scaling
from bringup.adapters.dialects.dialect import DECODER, Dialect
from bringup.adapters.dialects.llama import MISTRAL3, is_ministral, table
from bringup.adapters.dialects.tables import of_growth

if TYPE_CHECKING:
    from bringup.adapters.checkpoints.gguf_config import Hyperparameters


def derived(hyper: Hyperparameters) -> dict[str, Any]:
    """Rope's settings. `yarn_log_multiplier` is `mscale_all_dim`, and llama.cpp assumes that `mscale` is 1
    (`llama-context.cpp`)."""
    scaling = rope_scaling(hyper, hyper.values.get("rope.freq_base")) or {}
    if type(log := scaling.pop("yarn_log_multiplier", None)) is float:
        scaling |= {"mscale": 1.0, "mscale_all_dim": float(f"{log:.7g}")}
    return {"rope_scaling": of_growth(hyper, scaling, absent=0.0)}


dialect = Dialect(
    names=(MISTRAL3,),
    architecture="Ministral3ForCausalLM",
    keys={**DECODER, "attention.temperature_scale": None},
    fixed={"model_type": "ministral3", "hidden_act": "silu"},
    derived=derived,
    table=table,
    when=is_ministral,
)
