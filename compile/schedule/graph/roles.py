"""The roles of operations, on which fusion depends instead of names."""

from __future__ import annotations

from enum import Enum

from bringup.compile.schedule.graph.op_graph import Group, Node


class Role(Enum):
    """A role, by the inputs on which an element of the result depends."""

    ELEMENT = "element"  # the elements at the same index
    ROW = "row"  # a row of the last axis: norms, softmax, the selection of experts
    ROUND = "round"  # a row; the result is codes with scales
    GATHER = "gather"  # rows selected by an index
    PRODUCT = "product"  # a row of activations and a matrix
    ROTARY = "rotary"  # a pair of channels of the same head
    CACHE = "cache"  # writes rows of a cache
    ATTENTION = "attention"  # rows of a cache, for each query
    RECURRENT = "recurrent"  # the state of the sequence, and all its tokens so far
    MOVE = "move"  # copies elements to other indices


_NAMES = {
    Role.ELEMENT: "add sub mul div remainder neg clamp maximum minimum sigmoid tanh exp log log1p abs pow rsqrt silu "
    "relu gelu gelu_tanh where gt ge lt le eq ne bitwise_and bitwise_or bitwise_not to",
    Role.ROW: "rms_norm layer_norm softmax sum amax mean keep_best_groups top_experts top_keys selected_positions",
    Role.ROUND: "to_fp8",
    Role.GATHER: "index index_select quant_embedding",
    Role.PRODUCT: "linear bmm expert_linear quant_linear quant_experts fp8_linear fp8_experts "
    "lora_shrink lora_expand expert_lora_shrink expert_lora_expand",
    Role.ROTARY: "rope",
    Role.CACHE: "write_cache",
    Role.ATTENTION: "attention row_attention latent_attention index_scores",
    Role.RECURRENT: "causal_conv gated_delta_rule state_space",
    Role.MOVE: "clone cat arange rows_of_experts to_blocks from_blocks slots_to_blocks cached_rows lora_lookup "
    "marked_keys",
}
_ROLES = {name: role for role, names in _NAMES.items() for name in names.split()}
# The operators with which kernels write a state. Results of other operators are computed and then copied to the state.
WRITES = frozenset(
    f"aten.{name}"
    for name in ("copy_.default", "index_put_.default", "scatter_.src", "scatter_.value", "scatter_add_.default")
)
NORMS = frozenset({"rms_norm", "layer_norm"})


def is_known(short: str) -> bool:
    """Whether an operation has a role."""
    return short in _ROLES


def role_of(node: Node) -> Role | None:
    """The role of a node; None for an operation that is not fused with others."""
    return _ROLES.get(node.short)


def roles_of(group: Group) -> set[Role | None]:
    """The roles of a group's nodes."""
    return {role_of(node) for node in group.nodes}


def products(group: Group) -> list[Node]:
    """The matrix products of a group."""
    return [node for node in group.nodes if role_of(node) is Role.PRODUCT]
