"""Level 4: a function of arrays. BLOOM's published files, in your own loop over the layers.

    bringup check bloom --checkpoint DIR --adapter examples/authoring/own_function.py

Called with headers, it returns the plan of the table in adapters/bloom.py; called with arrays, it returns arrays.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from bringup.adapters import Adapter, traced
from bringup.graphs.bloom import BloomConfig

COPIED = (
    "input_layernorm",
    "post_attention_layernorm",
    "self_attention.dense",
    "mlp.dense_h_to_4h",
    "mlp.dense_4h_to_h",
)


def convert(tensors: Mapping[str, Any], config: BloomConfig) -> dict[str, Any]:
    """{parameter: array} from {tensor of the checkpoint: array}."""
    top = ("word_embeddings.weight", "ln_f.weight", "ln_f.bias")
    norm = [f"word_embeddings_layernorm.{p}" for p in ("weight", "bias")]
    arrays = {f"transformer.{name}": tensors[name] for name in (*top, *norm)}
    arrays["lm_head.weight"] = tensors["word_embeddings.weight"]
    heads, size = config.num_heads, config.head_dim
    for layer in range(config.num_layers):
        at = f"h.{layer}."
        for name in (f"{at}{name}.{p}" for name in COPIED for p in ("weight", "bias")):
            arrays[f"transformer.{name}"] = tensors[name]
        for p, shape in (("weight", (config.hidden,)), ("bias", ())):
            fused = tensors[f"{at}self_attention.query_key_value.{p}"].reshape(heads, 3, size, *shape)
            for x, part in zip("qkv", np.swapaxes(fused, 0, 1), strict=True):
                arrays[f"transformer.{at}self_attention.{x}_proj.{p}"] = part.reshape(heads * size, *shape)
    return arrays


def adapter(config: BloomConfig) -> Adapter:
    return traced(partial(convert, config=config), name="bloom")
