"""A small launch for each kernel that bundles have, by name.

A launch has few programs, so that the emulator is fast. Loops have three iterations or more, because a missing barrier
is visible only between iterations.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.kernels.attention import Case
from tests.kernels.tasks.attention import (
    attended,
    highest_keys,
    keys_at_positions,
    latent,
    positions_of_keys,
    prompts,
    scores_of_keys,
)
from tests.kernels.tasks.drawing import drawing, head
from tests.kernels.tasks.lora import expanded, expert_shrunk, looked_up, shrunk, slots_of_blocks
from tests.kernels.tasks.products import gated, in_float8, in_panels, of_experts, product, quantised
from tests.kernels.tasks.recurrent import (
    convolved,
    decays_of_heads,
    delta_in_chunks,
    delta_ruled,
    state_space_in_chunks,
    state_spaced,
)
from tests.kernels.tasks.rows import (
    activated_in_float8,
    copying,
    look_up,
    normed_in_float8,
    normed_rows,
    routing,
    sorting,
)
from tests.kernels.tasks.task import Task

SPLIT = 300, 40  # keys of a sequence whose splits are combined, and of one that has a single split
HEADS = {"heads": 2, "groups": 1}
WIDE = {"dtype": "bfloat16", "channels": 64, **HEADS}
SELECTED = {"dtype": "bfloat16", "channels": 80, "values": 64, "has_chosen": True, **HEADS}  # channels in two parts
TASKS: dict[str, Callable[[], Task]] = {
    "linear, float32": lambda: product(1, 1100, 4, "float32", "rms"),
    "linear, bfloat16, gated": lambda: gated(1, 4, "bfloat16"),
    "linear_tile, float32": lambda: product(20, 200, 16, "float32"),
    "linear_tile, bfloat16": lambda: product(20, 400, 16, "bfloat16"),
    "linear_tile, bfloat16, 70 rows": lambda: product(70, 400, 16, "bfloat16"),
    "linear_tile, bfloat16, norm": lambda: product(5, 400, 16, "bfloat16", "rms"),
    "linear_tile, bfloat16, gated": lambda: gated(70, 16, "bfloat16"),
    "linear_tile, bfloat16, experts": of_experts,
    "linear_tile, float32, largest logits": lambda: head(2, 38, "float32"),
    "linear_specialised, bfloat16": lambda: in_panels(product(200, 400, 250, "bfloat16"), "hopper.linear_specialised"),
    "linear_specialised, bfloat16, gated": lambda: in_panels(gated(200, 100, "bfloat16"), "hopper.linear_specialised"),
    "linear_panels, bfloat16": lambda: in_panels(product(200, 400, 250, "bfloat16"), "linear_panels"),
    "linear_panels, bfloat16, gated": lambda: in_panels(gated(200, 100, "bfloat16"), "linear_panels"),
    "quant_linear, int4": lambda: quantised(1, "int4", "float32"),
    "quant_linear, q4_k": lambda: quantised(1, "q4_k", "bfloat16"),
    "quant_linear_tile, int4": lambda: quantised(20, "int4-zeros", "bfloat16"),
    "quant_linear_tile, fp8": lambda: quantised(20, "fp8-blocks", "float32"),
    "fp8_linear, one row": lambda: in_float8(1, "bfloat16"),
    "fp8_linear, 70 rows": lambda: in_float8(70, "bfloat16"),
    "attention_decode, float32": lambda: attended(Case(lengths=SPLIT, blocks=5, has_sinks=True, **HEADS)),
    "attention_decode, bfloat16": lambda: attended(Case(lengths=SPLIT, blocks=5, **WIDE)),
    "attention_decode, chunks": lambda: attended(
        Case(lengths=SPLIT, blocks=5, window=150, chunked=True, ring=192, **HEADS)
    ),
    "attention_decode, selected keys": lambda: attended(Case(lengths=SPLIT, blocks=5, **SELECTED)),
    "attention_prefill, float32": lambda: attended(Case(lengths=(200,), new=(20,), blocks=5, heads=1, groups=1)),
    "attention_prefill, bfloat16": lambda: attended(Case(lengths=(200,), new=(70,), blocks=5, **WIDE)),
    "attention_prefill, chunks": lambda: attended(
        Case(lengths=(200,), new=(70,), blocks=5, window=150, chunked=True, ring=256, **WIDE)
    ),
    "attention_prefill, selected keys": lambda: attended(Case(lengths=(200,), new=(20,), blocks=5, **SELECTED)),
    "attention_specialised, bfloat16": prompts,
    "attention_specialised, chunks": lambda: prompts(chunk=150),
    "head_product, decode": lambda: latent((130,), (1,), "bfloat16"),
    "head_product, prefill": lambda: latent((130,), (20,), "float32"),
    "index_scores, bfloat16": lambda: scores_of_keys("bfloat16"),
    "index_scores, decode": lambda: scores_of_keys("float32", decode=True),
    "top_keys": highest_keys,
    "selected_positions": positions_of_keys,
    "marked_keys": keys_at_positions,
    "rows_of_experts": sorting,
    "to_blocks": copying,
    "rows, layer norm": normed_rows,
    "rows, norm to float8": lambda: normed_in_float8(2, "bfloat16"),
    "rows, silu and product to float8": lambda: activated_in_float8(2, "bfloat16"),
    "rows, silu and product to float8 by a given scale": lambda: activated_in_float8(2, "bfloat16", scale=True),
    "rows, routing": routing,
    "rows, routing of 256 experts in groups": lambda: routing(256, groups=4),
    "elements, look-up": look_up,
    "lora_shrink, decode": lambda: shrunk("bfloat16", decode=True),
    "lora_shrink, prefill": lambda: shrunk("float32", decode=False),
    "lora_shrink, experts": expert_shrunk,
    "lora_expand": lambda: expanded("bfloat16"),
    "lora_lookup": looked_up,
    "slots_to_blocks": slots_of_blocks,
    "causal_conv, decode": lambda: convolved("bfloat16", decode=True),
    "causal_conv, prefill": lambda: convolved("float32", decode=False),
    "gated_delta_rule, decode": lambda: delta_ruled(128, "bfloat16", decode=True),
    "gated_delta_rule, prefill": lambda: delta_ruled(64, "bfloat16", decode=False),
    "gated_delta_rule, 256 channels": lambda: delta_ruled(256, "float32", decode=False),
    "gated_delta_rule, chunks": delta_in_chunks,
    "state_space, decode": lambda: state_spaced(64, decode=True),
    "state_space, prefill": lambda: state_spaced(64, decode=False),
    "state_space, 256 channels": lambda: state_spaced(256, decode=False),
    "state_space, chunks": state_space_in_chunks,
    "state_space, chunks of 80 heads": decays_of_heads,
    "draw": lambda: drawing(3, 300, "float32"),
}
