"""A small Mistral with two kinds of layers, and faults planted in the lowering of its operations."""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.export import ExportedProgram
from torch.fx import Node
from transformers import MistralConfig

from bringup.compile.cache.store import Store
from bringup.compile.job import Job, open_job
from bringup.compile.pipeline import build
from bringup.compile.program import trace_cached
from bringup.compile.program.program import Function
from bringup.compile.runtime.session import Session, load
from bringup.compile.schedule.graph import from_export
from bringup.compile.schedule.graph.op_graph import OpGraph
from bringup.compile.targets import iree_mlir
from tests.models import parity

CONFIG = MistralConfig(
    vocab_size=67,
    hidden_size=32,
    intermediate_size=48,
    num_attention_heads=4,
    num_key_value_heads=4,
    num_hidden_layers=2,
    max_position_embeddings=256,
    sliding_window=12,
    layer_types=["full_attention", "sliding_attention"],
)

Change = Callable[[ExportedProgram, Node], None]


def saved(folder: Path, dtype: str = "float32", layers: int = 2) -> Path:
    config = copy.deepcopy(CONFIG)
    config.num_hidden_layers, config.layer_types = layers, CONFIG.layer_types[:layers]
    return parity.save_checkpoint(config, folder, dtype)


def compiled(
    job: Job,
    out: Path,
    *,
    target: str = "cpu",
    context: int = 40,
    buckets: tuple[int, ...] = (16,),
    cache: Store | None = None,
) -> Session:
    cache = cache or Store(out.with_name("cache"))  # its own: what is planted must not be found by anybody else
    bundle = build(job, out=out, target=target, max_seq_len=context, buckets=buckets, all_logits=True, cache=cache)
    return load(bundle)


def job(folder: Path) -> Job:
    return open_job(checkpoint=str(folder))


def plant(
    patch: pytest.MonkeyPatch, stage: str, target: str, source: str, change: Change, *, fused: bool = False
) -> None:
    """From now on one operation is lowered wrongly: the last `target` whose line of source contains `source`, in every
    function whose name contains `stage`; with `fused`, only where what goes into it is computed beside it.
    """
    text, graph = iree_mlir.stage_text, from_export.op_graph

    def changed(exported: ExportedProgram) -> ExportedProgram:
        nodes = [node for node in exported.graph.nodes if str(node.target) == target and source in line_of(node)]
        nodes = [node for node in nodes if not fused or any(n.op == "call_function" for n in node.all_input_nodes)]
        if nodes:
            change(exported, nodes[-1])
            exported.graph_module.recompile()
        return exported

    def wrong_text(function: Function, exported: ExportedProgram, **options: bool) -> iree_mlir.StageText:
        if stage not in function.name:
            return text(function, exported, **options)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*LeafSpec", category=FutureWarning)
            return text(function, changed(exported.run_decompositions({})), **options)

    def wrong_graph(function: Function, exported: ExportedProgram) -> OpGraph:
        return graph(function, changed(_copy(exported)) if stage in function.name else exported)

    patch.setattr(iree_mlir, "stage_text", wrong_text)
    patch.setattr(from_export, "op_graph", wrong_graph)
    patch.setattr(trace_cached._Source, "source_lines", True)


def _copy(exported: ExportedProgram) -> ExportedProgram:
    """With a graph and a signature of its own."""
    other = copy.copy(exported)
    other._graph_module = copy.deepcopy(exported.graph_module)
    other._graph_signature = copy.deepcopy(exported.graph_signature)
    return other


def line_of(node: Node) -> str:
    """The source text of the innermost line that a node comes from."""
    lines = re.findall(r'File "[^"]+", line \d+[^\n]*\n\s*([^\n]*)', node.meta.get("stack_trace") or "")
    return lines[-1] if lines else ""


def times(factor: float) -> Change:
    """The operation's result, multiplied."""

    def change(exported: ExportedProgram, node: Node) -> None:
        with exported.graph.inserting_after(node):
            node_after = exported.graph.call_function(torch.ops.aten.mul.Tensor, (node, factor))
        node_after.meta = dict(node.meta)
        node.replace_all_uses_with(node_after, delete_user_cb=lambda user: user is not node_after)
        renamed(exported, node.name, node_after.name)

    return change


def keeps_another_row(exported: ExportedProgram, node: Node) -> None:
    """What a step reads of the cache is right; what it leaves for the next step has its rows moved by one."""
    with exported.graph.inserting_after(node):
        node_after = exported.graph.call_function(torch.ops.aten.roll.default, (node, [1], [0]))
    node_after.meta = dict(node.meta)
    (output,) = (found for found in exported.graph.nodes if found.op == "output")
    output.replace_input_with(node, node_after)
    renamed(exported, node.name, node_after.name)


def renamed(exported: ExportedProgram, old: str, new: str) -> None:
    """The signature names results by the nodes that give them."""
    specs = exported.graph_signature.output_specs
    specs[:] = [replace(spec, arg=replace(spec.arg, name=new)) if spec.arg.name == old else spec for spec in specs]
