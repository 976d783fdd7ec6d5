"""A target's layout: programs read physical buffers, and compute what they do without one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bringup.adapters.algebra.expr import S, cat
from bringup.adapters.apply.fuse import fused, lay_out
from bringup.adapters.apply.materialise import materialise
from bringup.adapters.planning.adapter import Adapter
from bringup.compile.job import Job, open_job
from bringup.compile.program.export_options import layout_of
from bringup.compile.program.physical import buffers_of
from bringup.compile.program.program import Program
from bringup.compile.program.step_inputs import sequence_step
from bringup.compile.program.trace import export_graph
from bringup.compile.targets.torch_executor import TorchExecutor
from bringup.diagnostics import BringupError
from bringup.graphs.core.module import Const
from bringup.graphs.ops.lowering import OpLowering

CONTEXT = 64
CLOSE = 1e-6  # one product of other blocks: the last bits of float32 differ
LLAMA = {
    "architectures": ["LlamaForCausalLM"], "hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 4,
    "num_key_value_heads": 2, "num_hidden_layers": 2, "vocab_size": 20, "rms_norm_eps": 1e-5,
    "max_position_embeddings": CONTEXT, "attention_bias": True,
}  # fmt: skip


@pytest.fixture(scope="module")
def llama() -> Job:
    return open_job("llama", "dummy", config=LLAMA)


@pytest.fixture(scope="module")
def plain(llama: Job) -> Program:
    return program_of(llama, None)


def transposed() -> Adapter:
    layout = Adapter("transposed")
    layout["{p:**}.mlp.down_by_input"] = S("{p}.mlp.down_proj.weight").mv("out in -> in out")
    return layout


def tiled() -> Adapter:
    """The head's rows in tiles of four, input first within a tile."""
    layout = Adapter("tiled")
    layout["head_in_tiles"] = S("lm_head.weight").mv("(tile row) in -> tile in row", row=4)
    return layout


def padded() -> Adapter:
    layout = Adapter("padded")
    layout["{p:**}.o_proj.padded"] = S("{p}.o_proj.weight").pad("out", 32)
    return layout


def run(job: Job, program: Program, layout: Adapter | None) -> list[np.ndarray]:
    plan = lay_out(job.plan, layout) if layout else job.plan
    tables = {name: leaf.table(CONTEXT) for name, leaf in job.graph.leaves(Const)}
    executor = TorchExecutor(program.exported, program.interface, dict(materialise(plan, job.checkpoint)) | tables)
    prefill = executor.step("prefill_8", sequence_step([1, 2, 3], 0, 8, CONTEXT))
    return [prefill["logits"], executor.step("decode", sequence_step([4], 3, 1, CONTEXT))["logits"]]


def program_of(job: Job, layout: Adapter | None, ops: OpLowering | None = None) -> Program:
    buffers = buffers_of(job.graph, layout)
    return export_graph(job.graph, layout_of(job.graph, CONTEXT, (8,)), ops or OpLowering(), buffers)


def products(program: Program, name: str) -> int:
    """How many linear layers a function has."""
    return sum(str(node.target).endswith("linear.default") for node in program.exported[name].graph.nodes)


@pytest.mark.parametrize(
    "layout", [fused, tiled, *(pytest.param(each, marks=pytest.mark.slow) for each in (transposed, padded))]
)
@pytest.mark.parametrize("opaque", [(), pytest.param(("linear", "attention"), marks=pytest.mark.slow)], ids=str)
def test_the_same_logits(llama: Job, plain: Program, layout, opaque: tuple[str, ...]) -> None:
    laid_out = run(llama, program_of(llama, layout(), OpLowering(opaque=opaque)), layout())
    for ours, wanted in zip(laid_out, run(llama, plain, None), strict=True):
        assert np.abs(ours - wanted).max() <= CLOSE * np.abs(wanted).max()


def test_fused_parts_are_one_product(llama: Job, plain: Program) -> None:
    """q, k and v; gate and up: 7 layers become 4."""
    laid_out = program_of(llama, fused())
    assert (products(plain, "decode.layer0"), products(laid_out, "decode.layer0")) == (7, 4)
    names = {spec.name for spec in laid_out.interface.weights}
    assert {f"model.layers.1.self_attn.qkv_proj.{x}" for x in ("weight", "bias")} <= names
    assert not any("q_proj" in name or "gate_proj" in name for name in names)
    (shape,) = {spec.shape for spec in laid_out.interface.weights if spec.name.endswith("gate_up_proj.weight")}
    assert shape == (48, 16)


def test_a_part_that_others_read_too_stays_apart(llama: Job) -> None:
    """Only two of three in the buffer: they are one product, the third is its own."""
    layout = Adapter("keys and values")
    layout["{p:**}.kv_proj.weight"] = cat(S("{p}.k_proj.weight"), S("{p}.v_proj.weight"), axis="out")
    program = program_of(llama, layout)
    assert products(program, "decode.layer0") == 7  # their biases are apart, so they stay apart
    layout["{p:**}.kv_proj.bias"] = cat(S("{p}.k_proj.bias"), S("{p}.v_proj.bias"), axis="out")
    assert products(program_of(llama, layout), "decode.layer0") == 6


def test_what_no_layout_can_be(llama: Job, tmp_path: Path) -> None:
    across = Adapter("across layers")
    across["model.norms"] = cat(S("model.layers.0.input_layernorm.weight"), S("model.layers.1.input_layernorm.weight"),
                                axis="m")  # fmt: skip
    with pytest.raises(BringupError, match=r"BU131.*layers 0 and 1 differently"):
        program_of(llama, across)
    outside = Adapter("outside of its layer")
    outside["model.norms"] = S("model.layers.0.input_layernorm.weight").mv("m -> m")
    with pytest.raises(BringupError, match=r"BU131.*not in `model.layers.0`"):
        program_of(open_job("llama", "dummy", config=LLAMA | {"num_hidden_layers": 1}), outside)
    half = Adapter("half")
    half["{p:**}.top"] = S("{p}.o_proj.weight").mv("(two out) in -> two out in", two=2).at("two", 0)
    with pytest.raises(BringupError, match=r"BU131.*is not one region"):
        program_of(llama, half)


def test_layers_that_are_lowered_once_are_laid_out_alike(llama: Job) -> None:
    """The functions of the first layer serve the second."""
    order = Adapter("another order")
    for layer, parts in enumerate(("kv", "vk")):
        place = f"model.layers.{layer}.self_attn"
        order[f"{place}.x"] = cat(*(S(f"{place}.{part}_proj.weight") for part in parts), axis="out")
    some = Adapter("one layer only")
    some["model.layers.0.mlp.down"] = S("model.layers.0.mlp.down_proj.weight").mv("out in -> in out")
    for layout in (order, some):
        with pytest.raises(BringupError, match=r"BU131.*layers 0 and 1 differently"):
            buffers_of(llama.graph, layout)


def test_a_buffer_may_have_its_parameters_name(llama: Job, plain: Program) -> None:
    layout = Adapter("in place")
    layout["{p:**}.o_proj.weight"] = S("{p}.o_proj.weight").mv("out in -> in out")
    layout["{p:**}.down_proj.weight"] = S("{p}.down_proj.weight").pad("out", 20)
    found = run(llama, program_of(llama, layout), layout)
    for ours, wanted in zip(found, run(llama, plain, None), strict=True):
        assert np.abs(ours - wanted).max() <= CLOSE * np.abs(wanted).max()


def test_the_size_of_a_buffer_is_in_the_key(llama: Job) -> None:
    """Padding at the end changes no view."""
    keys = []
    for size in (20, 32):
        layout = Adapter("padded")
        layout["{p:**}.o_proj.padded"] = S("{p}.o_proj.weight").pad("out", size)
        keys.append(str(buffers_of(llama.graph, layout).below("model.layers.0.")))
    assert keys[0] != keys[1]


def test_rules_of_parameters_that_a_graph_lacks(llama: Job) -> None:
    """They do not hold; a parameter that a rule takes is stored once, whichever comes first."""
    layout = Adapter("more than there is")
    layout["{p:**}.kv.weight"] = cat(S("{p}.v_proj.weight"), S("{p}.k_proj.weight"), axis="out")
    layout["{p:**}.qx.weight"] = cat(S("{p}.q_proj.weight"), S("{p}.x_proj.weight"), axis="out")
    entries = lay_out(llama.plan, layout).entries
    assert "model.layers.0.self_attn.kv.weight" in entries
    assert "model.layers.0.self_attn.q_proj.weight" in entries
    assert not [name for name in entries if "k_proj.weight" in name or "v_proj.weight" in name or "qx" in name]


@pytest.mark.slow
def test_an_axis_of_one(llama: Job) -> None:
    """It has any stride: a matrix of one row that is transposed is no box of its buffer."""
    narrow = open_job("llama", "dummy", config=LLAMA | {"intermediate_size": 1})
    layout = transposed()
    for ours, wanted in zip(
        run(narrow, program_of(narrow, layout), layout), run(narrow, program_of(narrow, None), None), strict=True
    ):
        assert np.abs(ours - wanted).max() <= CLOSE * np.abs(wanted).max()
