"""The tensors of each rank in the sharded_state format of vLLM and SGLang, and back.

Format: ShardedStateLoader of vllm/model_executor/model_loader/sharded_state_loader.py and of
sglang/srt/model_loader/loader.py: `model-rank-N-part-M.safetensors` has the parameters of tensor-parallel rank N under
the names of the program's modules. Layers have the same numbers in each stage.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from bringup.adapters.algebra.expr import S, cat
from bringup.adapters.apply.fuse import fused, lay_out
from bringup.adapters.apply.gather import gathered, itself
from bringup.adapters.apply.materialise import fill
from bringup.adapters.apply.parallel import Parallel
from bringup.adapters.apply.rank_plan import Stages, rank_plan
from bringup.adapters.planning.adapter import Adapter
from bringup.adapters.planning.expected_headers import published
from bringup.adapters.planning.plan import Plan, make_plan
from bringup.diagnostics import BringupError, fail
from bringup.graphs.core.signature import Signature
from bringup.spec import TensorInfo

if TYPE_CHECKING:
    import numpy as np

NAME = "sharded_state"
# Families whose parameters have vLLM's names after `_layout` (vllm/model_executor/models: gpt2.py, llama.py,
# mixtral.py, phi3.py, qwen2.py, qwen3.py).
FAMILIES = frozenset({"gpt2", "llama", "mixtral", "phi3", "qwen2", "qwen3"})
VOCABULARY = 64  # DEFAULT_VOCAB_PADDING_SIZE of vllm/model_executor/layers/vocab_parallel_embedding.py


def stored_as(parallel: Parallel) -> Parallel:
    """The division as the format stores it: the bias of a row-parallel layer on every rank, a padded vocabulary."""
    return replace(parallel, bias="every", vocab_multiple=max(parallel.vocab_multiple, VOCABULARY))


def check_family(family: str) -> None:
    """Raises BU140 for a family without vLLM's names."""
    if family not in FAMILIES:
        raise no_form(family)


def no_form(family: str) -> BringupError:
    help = f"{', '.join(sorted(FAMILIES))} support it; `--to graph` and `--to layout` support every family"
    return fail("BU140", f"the form `{NAME}` is not defined for `{family}`", help=help)


def rank_of(plan: Plan, parallel: Parallel, rank: int, stages: Stages) -> Plan:
    """The contents of a rank's files, from the plan of all parameters. Raises the errors of `rank_plan`."""
    cut = lay_out(rank_plan(plan, parallel, rank, stages), _layout())
    return _without(cut, _stored_elsewhere(cut.aliases()))


def tied(plan: Plan, own: Adapter, read: Callable[[TensorInfo], np.ndarray]) -> Plan:
    """The plan with one source for parameters that the config ties, also if the checkpoint stores each.

    vLLM has one matrix for both then, and its loader rejects a file with two. `own` is the adapter of the published
    checkpoint. Raises BU140 if their values differ.
    """
    import numpy as np

    ties = _ties(plan.signature, own)
    known, entries = plan.aliases(), dict(plan.entries)
    for later, first in ties.items():
        if known.get(later) == first:
            continue
        if not np.array_equal(fill(plan.entries[later], read), fill(plan.entries[first], read)):
            message = f"the config ties `{later}` and `{first}`, which have other values, and the form `{NAME}` has one"
            raise fail("BU140", message, help="set tie_word_embeddings to false if the model was trained untied")
        entries[later] = replace(entries[first], declared=entries[later].declared)
    return replace(plan, entries=entries)


def _ties(signature: Signature, own: Adapter) -> dict[str, str]:
    """Parameters that share memory in the published checkpoint: {later: first}."""
    return make_plan(signature, own, published(signature, own)).aliases()


def reading(family: str, keys: Mapping[str, Any], path: str, own: Adapter) -> Adapter:
    """The adapter for files of ranks: the inverse of `rank_of` for each parameter.

    `keys` are those of `mapping` in bringup.json, or `tp_size` only; `path` is that of the graph's layers, `own` the
    adapter of the published checkpoint, which states which parameters are tied. Raises BU140 for a family without
    vLLM's names, and for repeated experts; when it is applied, BU229 for a model that does not divide so.
    """
    check_family(family)
    if keys.get("redundant_experts") or keys.get("physical_to_logical_map"):
        message = f"experts of a folder of the form `{NAME}` are repeated or reordered, and cannot be joined again"
        raise fail("BU140", message, help="convert the published checkpoint, or copy the folder: the same division")
    adapter = Adapter(f"{family} of {NAME}")
    adapter.trace = partial(_read, keys, path, own)
    return adapter


def _read(
    keys: Mapping[str, Any],
    path: str,
    own: Adapter,
    adapter: Adapter,
    signature: Signature,
    headers: Mapping[str, TensorInfo],
) -> Adapter:
    layers = [layer for name in signature if (layer := Stages(path).layer(name)) is not None]
    stages = Stages(path, max(layers, default=-1) + 1)
    elsewhere = _stored_elsewhere(_ties(signature, own))
    whole, parallel = itself(signature), divided(keys)
    try:
        cuts = [lay_out(rank_plan(whole, parallel, rank, stages), _layout()) for rank in range(parallel.size)]
    except BringupError as error:
        raise _indivisible(parallel.size, error.findings[0].message) from error
    held = {f"rank{rank}.": _without(cut, _within(elsewhere, cut)) for rank, cut in enumerate(cuts)}
    stored = {name for plan in held.values() for name in plan.entries}
    return gathered(adapter, signature, held, {name: own for name, own in elsewhere.items() if name not in stored})


def _within(elsewhere: Mapping[str, str], cut: Plan) -> dict[str, str]:
    """Those whose memory a parameter of the same rank has: a tied head of another stage is stored separately."""
    return {name: own for name, own in elsewhere.items() if own in cut.entries}


def _indivisible(size: int, why: str) -> BringupError:
    """BU229 for a model that cannot have so many ranks: those after the last file may be missing."""
    message = f"the folder has {size:,} ranks, among which the model cannot be divided: {why}"
    return fail("BU229", message, help="fetch the files of every rank, and the config.json that belongs to them")


def divided(keys: Mapping[str, Any]) -> Parallel:
    """The division that these keys describe; see `mapping_of` in compile/convert/convert.py. Raises BU045."""
    return stored_as(
        Parallel(
            tp=keys.get("tp_size", 1),
            ep=keys.get("ep_size", 1),
            pp=keys.get("pp_size", 1),
            stage_layers=tuple(keys.get("stage_layers", ())),
            vocab_multiple=keys.get("vocab_multiple", 1),
            experts=tuple(map(tuple, keys.get("physical_to_logical_map", ()))),
            redundant=keys.get("redundant_experts", 0),
        )
    )


def _layout() -> Adapter:
    """vLLM's names: q, k and v fused, gate and up fused; also those of the experts of FusedMoE."""
    table, moe = fused(), "{p:**}.block_sparse_moe"
    gate_up = (S(f"{{p}}.mlp.experts.{x}_proj") for x in ("gate", "up"))
    table[f"{moe}.experts.w13_weight"] = cat(*gate_up, axis="f")
    table[f"{moe}.experts.w2_weight"] = S("{p}.mlp.experts.down_proj")
    table[f"{moe}.gate.weight"] = S("{p}.mlp.gate.weight")
    return table


def _stored_elsewhere(aliases: Mapping[str, str]) -> dict[str, str]:
    """Of parameters that share memory, those that are not stored: {parameter: the one with the smallest name}.

    `aliases` is {later: first}. `_filter_subtensors` of vLLM's loader selects the smallest name.
    """
    groups: dict[str, set[str]] = {}
    for later, first in aliases.items():
        groups.setdefault(first, {first}).add(later)
    return {name: min(names) for names in groups.values() for name in names - {min(names)}}


def _without(plan: Plan, names: Mapping[str, str]) -> Plan:
    entries = {name: entry for name, entry in plan.entries.items() if name not in names}
    return replace(plan, entries=entries, signature=Signature({n: e.declared for n, e in entries.items()}))
