"""Ops that stay whole in a traced program: their schemas, what they change in place, and equal logits."""

from __future__ import annotations

import pkgutil
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from bringup.compile.program.export_options import layout_of
from bringup.compile.program.program import Program
from bringup.compile.program.step_inputs import sequence_step
from bringup.compile.program.trace import export_graph
from bringup.compile.targets.torch_executor import TorchExecutor
from bringup.graphs import ops
from bringup.graphs.ops.lowering import OpLowering, using
from bringup.graphs.ops.op import Op, op
from bringup.graphs.ops.operator import operator_of
from tests.models import family

OPS: dict[str, Op] = {
    value.name: value
    for module in pkgutil.iter_modules(ops.__path__)
    for value in vars(import_module(f"bringup.graphs.ops.{module.name}")).values()
    if isinstance(value, Op)
}
ALL = OpLowering(opaque=frozenset(OPS))
# They have ops of every kind: caches, experts, norms, rope, chosen keys.
CASES = {
    "gpt2": "saved", "llama": "mistral-window", "bloom": "saved", "gpt_oss": "calm", "mixtral": "every-expert",
    "deepseek_v32": "few-keys-yarn",
}  # fmt: skip
MARGIN = 64  # cache rows, enough for the tokens below


class Pair(NamedTuple):
    first: Tensor
    second: Tensor
    times: int


@op("x[... m]! -> ")
def double(x: Tensor, pairs: Pair | None = None) -> None:
    x.mul_(2)


@op("x[... m] -> [... m]")
def weighted(x: Tensor, pair: Pair, scale: float = 2.0) -> Tensor:
    return x * scale + pair.first + pair.second * pair.times


@op("x[... m] -> [... m]")
def same(x: Tensor) -> Tensor:
    return x


@pytest.fixture
def written(request: pytest.FixtureRequest, tmp_path: Path) -> family.Written:
    module = import_module(f"tests.models.test_{request.param}")
    case = CASES[request.param]
    return family.written(module, case if case in module.CASES else next(iter(module.CASES)), tmp_path)


def operators(program: Program) -> set[str]:
    """Names of our operators in a program's functions."""
    nodes = (node for exported in program.exported.values() for node in exported.graph.nodes)
    return {node.target._opname for node in nodes if getattr(node.target, "namespace", "") == "bringup"}


@pytest.mark.filterwarnings("ignore:BU151")
@pytest.mark.parametrize("written", CASES, indirect=True)
def test_opaque_ops_compute_the_same(written: family.Written) -> None:
    job = written.job()
    tokens = list(range(1, 10))
    inlined = family.eager_logits(job, tokens, 6, **written.inputs)
    with using(ALL):
        assert np.array_equal(family.eager_logits(job, tokens, 6, **written.inputs), inlined)


@pytest.mark.parametrize("written", ["llama"], indirect=True)
def test_a_program_keeps_them(written: family.Written) -> None:
    """Its functions call the operators; run by torch, they give the reference's numbers."""
    job = written.job()
    layout = layout_of(job.graph, MARGIN, (8,))
    few = export_graph(job.graph, layout, OpLowering(opaque={"attention", "linear"}))
    assert operators(few) == {"attention", "linear"}
    inlined = export_graph(job.graph, layout)
    assert operators(inlined) == set()
    every = export_graph(job.graph, layout, ALL)
    assert operators(every) == {"attention", "linear", "write_cache", "rms_norm", "rope", "silu"}
    weights = bundle_weights(job)
    results = []
    for program in (inlined, few, every):
        executor = TorchExecutor(program.exported, program.interface, weights)
        first = executor.step("prefill_8", sequence_step([1, 2, 3], 0, 8, MARGIN))["logits"]
        results.append((first, executor.step("decode", sequence_step([4], 3, 1, MARGIN))["logits"]))
    for found in results[1:]:
        assert all(np.array_equal(ours, wanted) for ours, wanted in zip(found, results[0], strict=True))


def bundle_weights(job) -> dict[str, np.ndarray]:
    from bringup.adapters.apply.materialise import materialise
    from bringup.graphs.core.module import Const

    tables = {name: leaf.table(MARGIN) for name, leaf in job.graph.leaves(Const)}
    return dict(materialise(job.plan, job.checkpoint)) | tables


@pytest.mark.parametrize("written", ["llama"], indirect=True)
def test_another_implementation_is_traced(written: family.Written) -> None:
    calls: list[int] = []

    def half(x: Tensor) -> Tensor:
        calls.append(1)
        return OPS["silu"].reference(x) * 0.5

    job = written.job()
    inlined = family.eager_logits(job, [1, 2, 3], 3)
    with using(OpLowering(implementations={"silu": half})):
        changed = family.eager_logits(job, [1, 2, 3], 3)
    assert calls
    assert not np.allclose(changed, inlined)
    assert np.array_equal(family.eager_logits(job, [1, 2, 3], 3), inlined)


def test_schemas_have_the_ops_own_names() -> None:
    schema = str(operator_of(OPS["write_cache"]).torch_op._opoverload._schema)
    assert schema == "bringup::write_cache(Tensor(a0!) cache_SGK, Tensor slots_N, Tensor rows_NGK) -> ()"
    assert "Tensor step_tokens, Tensor step_positions" in str(
        operator_of(OPS["attention"]).torch_op._opoverload._schema
    )
    for each in OPS.values():
        assert operator_of(each) is operator_of(each)


def test_a_record_is_taken_apart_and_put_together() -> None:
    x = torch.ones(2, 3)
    with using(OpLowering(opaque={weighted.name})):
        assert torch.equal(weighted(x, Pair(x, x, 4)), x * 7)
        assert torch.equal(weighted(x, pair=Pair(x, x, 0), scale=1.0), x * 2)
    values = operator_of(weighted).values((x, x, x, 4, 2.0))
    assert (values["pair"].times, values["scale"]) == (4, 2.0)


def test_a_result_never_shares_memory_with_an_argument() -> None:
    x = torch.ones(3)
    with using(OpLowering(opaque={same.name})):
        assert same(x).data_ptr() != x.data_ptr()


def test_what_no_operator_can_be() -> None:
    with using(OpLowering(opaque={double.name})), pytest.raises(TypeError, match="cannot be opaque"):
        double(torch.ones(2))


def test_two_ops_of_one_name_are_refused() -> None:
    """The second would take the first one's place in torch."""

    def other(x: Tensor) -> Tensor:
        return x * 3

    other.__module__, other.__name__ = "elsewhere", "same"
    first = op("x[... m] -> [... m]")(other)
    first.name = same.name
    operator_of(same)
    with pytest.raises(TypeError, match="two ops are called"):
        operator_of(first)


def test_views_of_a_state_by_list_count_as_updates() -> None:
    from torch.export import export

    from bringup.compile.program.functional_run import changed_inputs

    class Write(torch.nn.Module):
        def forward(self, state: Tensor, row: Tensor) -> Tensor:
            first, _ = state.unbind(0)
            first.index_copy_(0, torch.tensor([1]), row)
            return row + 1

    exported = export(Write(), (torch.zeros(2, 4, 3), torch.ones(1, 3)), strict=False)
    assert {node.name for node in changed_inputs(exported).updated} == {"state"}
