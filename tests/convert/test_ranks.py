"""Slice(materialise) = materialise(slice): every kind of parameter, every rank, against numpy written by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import bringup
from bringup.adapters.apply.parallel import Parallel
from bringup.adapters.apply.rank_plan import Stages, rank_plan
from bringup.diagnostics import BringupError
from tests.convert import by_hand, models
from tests.convert.by_hand import Arrays

EXAMPLES = settings(max_examples=25, deadline=None)


def same(found: Arrays, wanted: Arrays) -> None:
    assert found.keys() == wanted.keys()
    for name, array in wanted.items():
        assert found[name].shape == array.shape, name
        np.testing.assert_array_equal(found[name], array, name)


@EXAMPLES
@given(st.data())
def test_dense_layers(data: st.DataObject) -> None:
    """Column, row, merged column, key heads repeated, vocabulary with padding, bias on rank 0, uneven stages."""
    tp, pp = data.draw(st.sampled_from([1, 2, 3, 4, 8])), data.draw(st.integers(1, 3))
    kv = data.draw(st.sampled_from([n for n in (1, 2, 3, 4, 8) if n % tp == 0 or tp % n == 0]))
    heads = math.lcm(kv, tp) * data.draw(st.integers(1, 2))
    layers, dim = data.draw(st.integers(pp, 4)), data.draw(st.sampled_from([2, 4]))
    multiple = data.draw(st.sampled_from([1, 4, 10]))
    tensors, config = models.llama(
        heads=heads, kv=kv, dim=dim, ffn=tp * data.draw(st.integers(1, 4)), vocab=data.draw(st.integers(2, 40)),
        layers=layers, m=8,
    )  # fmt: skip
    job = models.job(tensors, config)
    for rank in range(tp * pp):
        found = bringup.adapt(job, tp=tp, pp=pp, rank=rank, vocab_multiple=multiple)
        same(found, by_hand.llama(tensors, rank, tp=tp, pp=pp, heads=kv, layers=layers, multiple=multiple))


@EXAMPLES
@given(st.sampled_from([1, 2, 4]), st.integers(2, 40))
def test_fused_and_transposed_layers(tp: int, vocab: int) -> None:
    tensors, config = models.gpt2(vocab=vocab)
    job = models.job(tensors, config)
    for rank in range(tp):
        same(bringup.adapt(job, tp=tp, rank=rank), by_hand.gpt2(tensors, rank, tp=tp))


@EXAMPLES
@given(st.data())
def test_experts(data: st.DataObject) -> None:
    """Whole experts for each rank, also when the map repeats some, the router whole, both ways of sharing a stage."""
    tp, ep = data.draw(st.sampled_from([(1, 1), (1, 2), (2, 1), (2, 2), (4, 2), (2, 4), (4, 4)]))
    count = data.draw(st.sampled_from([2, 3, 4]))
    extra = data.draw(st.integers(0, 4))
    physical = data.draw(st.permutations([*range(count), *(k % count for k in range(extra))]))
    physical += [0] * (-len(physical) % ep)
    tensors, config = models.mixtral(experts=count)
    job = models.job(tensors, config)
    for rank in range(max(tp, ep)):
        found = bringup.adapt(job, tp=tp, ep=ep, rank=rank, experts=[physical])
        same(found, by_hand.mixtral(tensors, rank, tp=tp, ep=ep, heads=2, physical=physical))


@pytest.mark.parametrize("words", [{"stage_layers": (7,)}, {"experts": ((0, 1),), "redundant": 2}])
def test_numbers_that_would_count_for_nothing(words: dict[str, Any]) -> None:
    with pytest.raises(BringupError, match="BU045"):
        Parallel(**words)


def test_redundant_experts_repeat_the_first() -> None:
    tensors, config = models.mixtral(experts=4)
    job = models.job(tensors, config)
    for rank in range(3):
        found = bringup.adapt(job, ep=3, rank=rank, redundant=2)
        same(found, by_hand.mixtral(tensors, rank, tp=1, ep=3, heads=2, physical=[0, 1, 2, 3, 0, 1]))


@pytest.mark.parametrize(("ep", "redundant", "most"), [(2, 5, 4), (3, 10**9, 8), (1, 1, 0)])
def test_more_copies_than_one_of_each_expert_on_each_rank(ep: int, redundant: int, most: int) -> None:
    job = models.job(*models.mixtral(experts=4))
    with pytest.raises(BringupError, match=rf"BU138.*{ep} expert-parallel ranks, {most} copies of the 4 experts"):
        bringup.adapt(job, ep=ep, redundant=redundant)


def test_a_map_for_each_layer() -> None:
    tensors, config = models.mixtral(experts=2)
    job = models.job(tensors, config)
    found = bringup.adapt(job, ep=2, rank=1, experts=[[0, 1], [1, 0]])
    for layer, expert in ((0, 1), (1, 0)):
        w = tensors[f"model.layers.{layer}.block_sparse_moe.experts.{expert}.w1.weight"]
        np.testing.assert_array_equal(found[f"model.layers.{layer}.mlp.experts.gate_proj"][0], w)


def test_stages_of_given_sizes() -> None:
    tensors, config = models.llama(layers=4)
    job = models.job(tensors, config)
    stages = [bringup.adapt(job, pp=3, rank=rank, stage_layers=[1, 1, 2]) for rank in range(3)]
    layers = [{name.split(".")[2] for name in stage if name.startswith("model.layers.")} for stage in stages]
    assert layers == [{"0"}, {"1"}, {"2", "3"}]
    assert [sorted(name for name in stage if "layers" not in name) for stage in stages] == [
        ["model.embed_tokens.weight"], [], ["lm_head.weight", "model.norm.weight"],
    ]  # fmt: skip
    same({name: w for stage in stages for name, w in stage.items()}, tensors)


def test_a_physical_layout_is_of_the_ranks_own_parameters() -> None:
    """`layout` of a target without buffers is the graph's; one that fuses joins what the rank has of each."""
    tensors, config = models.llama()
    job = models.job(tensors, config)
    own = bringup.adapt(job, tp=2, rank=1)
    same(bringup.adapt(job, tp=2, rank=1, to="layout", target="iree-cpu"), own)
    fused = bringup.adapt(job, tp=2, rank=1, to="layout", target="cpu")
    parts = [own[f"model.layers.1.self_attn.{name}_proj.weight"] for name in "qkv"]
    np.testing.assert_array_equal(fused["model.layers.1.self_attn.qkv_proj.weight"], np.concatenate(parts))


def test_arrays_are_contiguous_writable_and_apart() -> None:
    tensors, config = models.gpt2()
    arrays = bringup.adapt(models.job(tensors, config), tp=2, rank=0)
    assert all(array.flags.c_contiguous and array.flags.writeable for array in arrays.values())
    arrays["lm_head.weight"][...] = 0
    assert arrays["transformer.wte.weight"].any()


def test_dlpack() -> None:
    """torch takes the arrays without a copy."""
    tensors, config = models.llama()
    arrays = bringup.adapt(models.job(tensors, config))
    for name, array in arrays.items():
        tensor = torch.from_dlpack(array)
        assert tensor.data_ptr() == array.ctypes.data
        np.testing.assert_array_equal(tensor.numpy(), tensors[name])


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ({"tp": 2, "ep": 3}, "BU045", "do not share a stage"),
        ({"tp": 2, "rank": 2}, "BU045", "rank 2 is out of range"),
        ({"pp": 3}, "BU045", "2 layers do not fill 3 pipeline stages"),
        ({"pp": 2, "stage_layers": [2, 1]}, "BU045", "the stages have 3 layers together, the model has 2"),
        ({"pp": 2, "stage_layers": [2]}, "BU045", "1 numbers of layers, [2], for 2 stages"),
        ({"tp": 0}, "BU045", "numbers of ranks begin at 1"),
        ({"tp": 3}, "BU130", "axis `h` of size 4 does not divide among 3 ranks"),
        ({"ep": 3}, "BU130", "axis `e` of size 4 does not divide among 3 ranks"),
        ({"ep": 2, "experts": [[0, 1, 2, 2]]}, "BU138", "the expert map of layer 0 lacks expert 3"),
        ({"ep": 2, "experts": [[0, 1, 2, 3, 4, 0]]}, "BU138", "names expert 4; the layer has experts 0 to 3"),
        ({"ep": 2, "experts": [[0, 1, 2, 3]] * 2, "pp": 1}, "", ""),
    ],
)
def test_what_does_not_fit_is_refused(words: dict[str, Any], code: str, said: str) -> None:
    job = models.job(*models.mixtral())
    if not code:
        bringup.adapt(job, **words)
        return
    with pytest.raises(BringupError) as caught:
        bringup.adapt(job, **words)
    assert caught.value.findings[0].code == code
    assert said in caught.value.findings[0].message


def test_no_experts_to_divide() -> None:
    with pytest.raises(BringupError, match="no parameter has an axis `e` to divide among 2 ranks"):
        bringup.adapt(models.job(*models.llama()), ep=2)


@pytest.mark.parametrize("words", [{"redundant": 2}, {"experts": [[0, 1]]}])
def test_no_experts_to_place(words: dict[str, Any]) -> None:
    with pytest.raises(BringupError, match="no experts to place on ranks") as caught:
        bringup.adapt(models.job(*models.llama()), **words)
    assert caught.value.findings[0].code == "BU138"


def test_numbers_of_ranks() -> None:
    """Stage by stage; expert groups are neighbours."""
    places = [Parallel(tp=4, ep=2, pp=2).rank(number) for number in range(8)]
    assert [(p.stage, p.tp, p.ep, p.expert_tp) for p in places] == [
        (0, 0, 0, 0), (0, 1, 0, 1), (0, 2, 1, 0), (0, 3, 1, 1), (1, 0, 0, 0), (1, 1, 0, 1), (1, 2, 1, 0), (1, 3, 1, 1),
    ]  # fmt: skip
    places = [Parallel(tp=2, ep=4).rank(number) for number in range(4)]
    assert [(p.tp, p.ep, p.expert_tp) for p in places] == [(0, 0, 0), (1, 1, 0), (0, 2, 0), (1, 3, 0)]


def test_one_rank_is_the_plan_itself() -> None:
    """Nothing is cut, and nothing is worked out for parameters that stay as they are."""
    job = models.job(*models.llama())
    assert rank_plan(job.plan, Parallel(), 0, Stages.of(job.graph)) is job.plan
    assert rank_plan(job.plan, Parallel(vocab_multiple=64), 0, Stages.of(job.graph)) is not job.plan
