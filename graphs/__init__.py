"""The public surface for graphs: modules, layers, operations, config reading and families."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bringup.graphs.config.fields import Fields as Fields
    from bringup.graphs.config.hf_config import HFConfig as HFConfig
    from bringup.graphs.config.moe import RoutingConfig as RoutingConfig
    from bringup.graphs.config.rope import RopeConfig as RopeConfig
    from bringup.graphs.config.rope import yarn_scale as yarn_scale
    from bringup.graphs.config.unquantized import UnquantizedModules as UnquantizedModules
    from bringup.graphs.config.windows import alternating_windows as alternating_windows
    from bringup.graphs.config.windows import sliding_window as sliding_window
    from bringup.graphs.config.windows import switched_window as switched_window
    from bringup.graphs.config.windows import window_of_layers as window_of_layers
    from bringup.graphs.core.axes import Axis as Axis
    from bringup.graphs.core.form import Form as Form
    from bringup.graphs.core.graph import Graph as Graph
    from bringup.graphs.core.module import Const as Const
    from bringup.graphs.core.module import Module as Module
    from bringup.graphs.core.module import Param as Param
    from bringup.graphs.core.module import State as State
    from bringup.graphs.core.options import GraphOptions as GraphOptions
    from bringup.graphs.core.options import build_graph as build_graph
    from bringup.graphs.core.options import current_options as current_options
    from bringup.graphs.core.options import graph_options as graph_options
    from bringup.graphs.core.signature import Declared as Declared
    from bringup.graphs.core.signature import Signature as Signature
    from bringup.graphs.core.step import BLOCK as BLOCK
    from bringup.graphs.core.step import FIELDS as FIELDS
    from bringup.graphs.core.step import Step as Step
    from bringup.graphs.core.to_torch import to_torch as to_torch
    from bringup.graphs.decoder import CausalLM as CausalLM
    from bringup.graphs.decoder import Decoder as Decoder
    from bringup.graphs.decoder import DecoderConfig as DecoderConfig
    from bringup.graphs.decoder import PreNormLayer as PreNormLayer
    from bringup.graphs.decoder import RecurrentLayer as RecurrentLayer
    from bringup.graphs.decoder import context_length as context_length
    from bringup.graphs.decoder import read_common as read_common
    from bringup.graphs.family import Family as Family
    from bringup.graphs.layers.attention import GroupedAttention as GroupedAttention
    from bringup.graphs.layers.causal_conv import CausalConv as CausalConv
    from bringup.graphs.layers.delta_net import GatedDeltaNet as GatedDeltaNet
    from bringup.graphs.layers.embedding import Embedding as Embedding
    from bringup.graphs.layers.kv_cache import KVCache as KVCache
    from bringup.graphs.layers.linear import Linear as Linear
    from bringup.graphs.layers.mamba2 import GroupedRMSNorm as GroupedRMSNorm
    from bringup.graphs.layers.mamba2 import Mamba2 as Mamba2
    from bringup.graphs.layers.mla import LatentAttention as LatentAttention
    from bringup.graphs.layers.mlp import MLP as MLP
    from bringup.graphs.layers.mlp import GatedMLP as GatedMLP
    from bringup.graphs.layers.moe_experts import Experts as Experts
    from bringup.graphs.layers.moe_shared import Mixture as Mixture
    from bringup.graphs.layers.moe_shared import SharedMixture as SharedMixture
    from bringup.graphs.layers.moe_shared import SigmoidRouter as SigmoidRouter
    from bringup.graphs.layers.moe_softmax import SparseMLP as SparseMLP
    from bringup.graphs.layers.norm import Float32RMSNorm as Float32RMSNorm
    from bringup.graphs.layers.norm import LayerNorm as LayerNorm
    from bringup.graphs.layers.norm import OnePlusRMSNorm as OnePlusRMSNorm
    from bringup.graphs.layers.norm import PlainRMSNorm as PlainRMSNorm
    from bringup.graphs.layers.norm import RMSNorm as RMSNorm
    from bringup.graphs.layers.rotary import rope_rows as rope_rows
    from bringup.graphs.layers.sparse_indexer import Indexer as Indexer
    from bringup.graphs.ops.activation import ACTIVATIONS as ACTIVATIONS
    from bringup.graphs.ops.activation import soft_cap as soft_cap
    from bringup.graphs.ops.attention import attention as attention
    from bringup.graphs.ops.kv_cache import write_cache as write_cache
    from bringup.graphs.ops.linear import linear as linear
    from bringup.graphs.ops.moe_routing import keep_best_groups as keep_best_groups
    from bringup.graphs.ops.moe_routing import top_experts as top_experts
    from bringup.graphs.ops.norm import layer_norm as layer_norm
    from bringup.graphs.ops.norm import rms_norm as rms_norm
    from bringup.graphs.ops.op import op as op
    from bringup.graphs.ops.operator import operator_of as operator_of
    from bringup.graphs.ops.recurrent.causal_conv import causal_conv as causal_conv
    from bringup.graphs.ops.recurrent.delta_rule import gated_delta_rule as gated_delta_rule
    from bringup.graphs.ops.recurrent.state_space import state_space as state_space
    from bringup.graphs.ops.rotary import rope as rope
    from bringup.graphs.registry import by_architecture as by_architecture
    from bringup.graphs.registry import by_name as by_name
    from bringup.graphs.registry import families as families
else:
    from bringup.facade import lazy_dir, lazy_import, public_names

    _HOMES = {
        "config.fields": "Fields",
        "config.hf_config": "HFConfig",
        "config.moe": "RoutingConfig",
        "config.rope": "RopeConfig yarn_scale",
        "config.unquantized": "UnquantizedModules",
        "core.axes": "Axis",
        "core.form": "Form",
        "core.graph": "Graph",
        "core.module": "Const Module Param State",
        "core.options": "GraphOptions build_graph current_options graph_options",
        "core.signature": "Declared Signature",
        "core.step": "BLOCK FIELDS Step",
        "core.to_torch": "to_torch",
        "config.windows": "alternating_windows sliding_window switched_window window_of_layers",
        "decoder": "CausalLM Decoder DecoderConfig PreNormLayer RecurrentLayer context_length read_common",
        "layers.attention": "GroupedAttention",
        "layers.causal_conv": "CausalConv",
        "layers.delta_net": "GatedDeltaNet",
        "layers.embedding": "Embedding",
        "layers.kv_cache": "KVCache",
        "layers.linear": "Linear",
        "layers.mamba2": "GroupedRMSNorm Mamba2",
        "layers.mla": "LatentAttention",
        "layers.mlp": "GatedMLP MLP",
        "layers.moe_experts": "Experts",
        "layers.moe_shared": "Mixture SharedMixture SigmoidRouter",
        "layers.moe_softmax": "SparseMLP",
        "layers.norm": "Float32RMSNorm LayerNorm OnePlusRMSNorm PlainRMSNorm RMSNorm",
        "layers.rotary": "rope_rows",
        "layers.sparse_indexer": "Indexer",
        "ops.activation": "ACTIVATIONS soft_cap",
        "ops.attention": "attention",
        "ops.kv_cache": "write_cache",
        "ops.linear": "linear",
        "ops.moe_routing": "keep_best_groups top_experts",
        "ops.norm": "layer_norm rms_norm",
        "ops.op": "op",
        "ops.operator": "operator_of",
        "ops.recurrent.causal_conv": "causal_conv",
        "ops.recurrent.delta_rule": "gated_delta_rule",
        "ops.recurrent.state_space": "state_space",
        "ops.rotary": "rope",
        "family": "Family",
        "registry": "by_architecture by_name families",
    }
    __all__ = public_names(_HOMES)
    __getattr__ = lazy_import(__name__, _HOMES)
    __dir__ = lazy_dir(__all__, globals())
