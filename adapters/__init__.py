"""The public surface for adapters: rules, plans, checkpoints and the uses of a plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bringup.adapters.algebra.expr import Expr as Expr
    from bringup.adapters.algebra.expr import S as S
    from bringup.adapters.algebra.expr import cat as cat
    from bringup.adapters.algebra.expr import packed as packed
    from bringup.adapters.algebra.expr import stack as stack
    from bringup.adapters.algebra.hooks import hook as hook
    from bringup.adapters.algebra.per_layer import where as where
    from bringup.adapters.algebra.quantised import QuantisedMatrix as QuantisedMatrix
    from bringup.adapters.algebra.traced import compute as compute
    from bringup.adapters.algebra.values import cast as cast
    from bringup.adapters.algebra.values import dequant as dequant
    from bringup.adapters.algebra.values import fn as fn
    from bringup.adapters.algebra.values import log as log
    from bringup.adapters.algebra.values import quant as quant
    from bringup.adapters.algebra.values import reciprocal as reciprocal
    from bringup.adapters.algebra.values import scale as scale
    from bringup.adapters.algebra.values import shift as shift
    from bringup.adapters.apply.fuse import fused as fused
    from bringup.adapters.apply.fuse import lay_out as lay_out
    from bringup.adapters.apply.fuse import shared_as_experts as shared_as_experts
    from bringup.adapters.apply.materialise import materialise as materialise
    from bringup.adapters.apply.parallel import Parallel as Parallel
    from bringup.adapters.apply.rank_plan import Stages as Stages
    from bringup.adapters.apply.rank_plan import rank_plan as rank_plan
    from bringup.adapters.apply.reverse import reverse as reverse
    from bringup.adapters.apply.shard import slice_plan as slice_plan
    from bringup.adapters.checkpoints.checkpoint import Checkpoint as Checkpoint
    from bringup.adapters.checkpoints.memory import dict_checkpoint as dict_checkpoint
    from bringup.adapters.checkpoints.reader import Contents as Contents
    from bringup.adapters.checkpoints.reader import Reader as Reader
    from bringup.adapters.checkpoints.reader import TensorInfo as TensorInfo
    from bringup.adapters.dialects.dialect import DECODER as DECODER
    from bringup.adapters.dialects.dialect import Dialect as Dialect
    from bringup.adapters.planning.adapter import Adapter as Adapter
    from bringup.adapters.planning.adapter import either as either
    from bringup.adapters.planning.adapter import tied as tied
    from bringup.adapters.planning.expected_headers import as_declared as as_declared
    from bringup.adapters.planning.expected_headers import published as published
    from bringup.adapters.planning.plan import Plan as Plan
    from bringup.adapters.planning.plan import make_plan as make_plan
    from bringup.adapters.planning.traced import traced as traced
    from bringup.adapters.schemes.scheme import Scheme as Scheme
    from bringup.adapters.schemes.scheme import Stored as Stored
    from bringup.adapters.schemes.scheme import StoredMatrix as StoredMatrix
    from bringup.adapters.sources.dummy import dummy_checkpoint as dummy_checkpoint
    from bringup.adapters.sources.open_checkpoint import Access as Access
    from bringup.adapters.sources.open_checkpoint import open_checkpoint as open_checkpoint
else:
    from bringup.facade import lazy_dir, lazy_import, public_names

    _HOMES = {
        "algebra.expr": "Expr S cat packed stack",
        "algebra.hooks": "hook",
        "algebra.per_layer": "where",
        "algebra.quantised": "QuantisedMatrix",
        "algebra.traced": "compute",
        "algebra.values": "cast dequant fn log quant reciprocal scale shift",
        "apply.fuse": "fused lay_out shared_as_experts",
        "apply.materialise": "materialise",
        "apply.parallel": "Parallel",
        "apply.rank_plan": "Stages rank_plan",
        "apply.reverse": "reverse",
        "apply.shard": "slice_plan",
        "checkpoints.checkpoint": "Checkpoint",
        "checkpoints.memory": "dict_checkpoint",
        "checkpoints.reader": "Contents Reader TensorInfo",
        "dialects.dialect": "DECODER Dialect",
        "planning.adapter": "Adapter either tied",
        "planning.expected_headers": "as_declared published",
        "planning.plan": "Plan make_plan",
        "planning.traced": "traced",
        "schemes.scheme": "Scheme Stored StoredMatrix",
        "sources.dummy": "dummy_checkpoint",
        "sources.open_checkpoint": "Access open_checkpoint",
    }
    __all__ = public_names(_HOMES)
    __getattr__ = lazy_import(__name__, _HOMES)
    __dir__ = lazy_dir(__all__, globals())
