"""What a target has in place of an op's reference is that target's: the graph has one formulation for all."""

from __future__ import annotations

from collections import Counter
from importlib import import_module

import pytest

from bringup.compile.job import Job, open_job
from bringup.compile.program.assemble import trace_entry
from bringup.compile.program.export_options import layout_of
from bringup.compile.program.trace import tracer_of
from bringup.compile.targets.selection import select
from bringup.graphs.ops.lowering import OpLowering

CONTEXT = 128  # 2 blocks of keys


@pytest.fixture
def job(request: pytest.FixtureRequest) -> Job:
    """One layer, in DeepSeek a dense one, of a family's first case: nothing else is read of the program."""
    config = next(iter(import_module(f"tests.models.test_{request.param}").CASES.values())).to_dict()
    return open_job(request.param, "dummy", config=config | {"num_hidden_layers": 1})


def products_of(job: Job, target: str) -> Counter[str]:
    """Batched matrix products in a layer's decode function: those of attention, for the linear layers have none."""
    ops = select(target).form.ops if target else OpLowering()
    layout = layout_of(job.graph, CONTEXT, (8,))
    _, stages = trace_entry(layout, layout.entries[-1], tracer_of(job.graph, layout, ops))
    (layer,) = (stage.code for stage in stages if stage.function.name == "decode.layer0")
    names = [getattr(node.target, "_opname", "") for node in layer.graph.nodes]
    return Counter({"matmul": "bmm"}.get(name, name) for name in names if name in ("bmm", "matmul", "sum"))


@pytest.mark.parametrize("job", ["llama"], indirect=True)
def test_decode_is_products_and_sums_for_iree_alone(job: Job) -> None:
    assert products_of(job, "") == products_of(job, "torch") == {"bmm": 2}
    assert products_of(job, "iree-cpu") == {"sum": 2}


@pytest.mark.parametrize("job", ["deepseek_v3"], indirect=True)
def test_each_target_chooses_its_form_of_mla(job: Job) -> None:
    """Absorbed are two products, of queries and results; direct none besides scores and their sum over values."""
    assert products_of(job, "") == {"bmm": 2}
    assert products_of(job, "torch") == {"bmm": 4}
    assert products_of(job, "iree-cpu") == {"bmm": 2, "sum": 2}
