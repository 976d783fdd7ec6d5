"""Mistakes that only a division shows are found, and the module is named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from torch import Tensor
from transformers import LlamaConfig, MixtralConfig, Olmo2Config

from bringup.adapters.algebra.region import Region
from bringup.adapters.apply import rank_plan
from bringup.adapters.apply.materialise import materialise
from bringup.adapters.apply.parallel import Parallel
from bringup.compile.job import Job, job_of, open_job
from bringup.compile.parity.parity import Parity
from bringup.compile.ranks.verify import verify_ranks
from bringup.diagnostics import BringupError
from bringup.graphs.core.module import Module, Param
from bringup.graphs.layers.attention import GroupedAttention
from bringup.graphs.layers.linear import Linear
from bringup.graphs.layers.mlp import GatedMLP
from bringup.graphs.llama import Llama
from tests.models import parity

SIZES: dict[str, Any] = {
    "vocab_size": 97, "max_position_embeddings": 128, "num_hidden_layers": 2, "hidden_size": 32, "head_dim": 8,
    "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": False,
}  # fmt: skip
MIXTRAL = MixtralConfig(**SIZES, num_local_experts=4, num_experts_per_tok=2, sliding_window=None)
TWO = Parallel(tp=2)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Job:
    folder = tmp_path_factory.mktemp("llama")
    return open_job(checkpoint=str(parity.save_checkpoint(LlamaConfig(**SIZES, attention_bias=True), folder)))


def with_layers(job: Job, change: Any) -> Job:
    """The job with another graph: `change` replaces parts of each layer."""

    class Changed(Llama):
        def layer(self, config: Any, index: int) -> Any:
            layer = super().layer(config, index)
            change(layer, config)
            return layer

    return job_of(Changed(job.graph.config), materialise(job.plan, job.checkpoint))


def departing(found: Parity) -> str:
    """The module that the finding names."""
    assert not found.ok
    (finding,) = found.findings
    assert finding.code == "BU710"
    return finding.parameter


def test_a_graph_that_divides(llama: Job) -> None:
    assert verify_ranks(llama, parallel=TWO).ok
    assert verify_ranks(with_layers(llama, lambda layer, config: None), parallel=Parallel(tp=4)).ok


def test_axes_in_another_order_than_the_forward_reads(llama: Job) -> None:
    """The matrix is square: shapes and the undivided logits are right."""

    def change(layer: Any, config: Any) -> None:
        bias = {"bias": config.attention_bias}
        layer.self_attn.q_proj = Linear("out:(d h) in:m", h=config.num_heads, d=8, m=32, **bias)

    found = verify_ranks(with_layers(llama, change), parallel=TWO)
    assert departing(found) == "model.layers.0.self_attn.o_proj"
    assert "`model.layers.0.self_attn.q_proj.weight` as `out:(d h) in:m`" in (found.findings[0].help or "")


class Centred(GatedMLP):
    def forward(self, x_Nm: Tensor) -> Tensor:
        gated_Nf = self.gate_proj(x_Nm).sigmoid() * self.up_proj(x_Nm)
        return self.down_proj(gated_Nf - gated_Nf.mean(-1, keepdim=True))


def test_a_mean_over_channels_of_which_a_rank_has_some(llama: Job) -> None:
    def change(layer: Any, config: Any) -> None:
        layer.mlp = Centred(config.hidden, config.ffn, config.activation)

    found = verify_ranks(with_layers(llama, change), parallel=TWO)
    assert departing(found) == "model.layers.0.mlp.down_proj"


def test_a_channel_axis_with_the_name_of_a_divided_one(llama: Job) -> None:
    """`h` of the output projection is not an axis of its input: ranks would read other channels than they have."""

    def change(layer: Any, config: Any) -> None:
        layer.mlp.down_proj = Linear("out:m in:(d f)", m=config.hidden, f=config.ffn // 8, d=8, bias=False)

    found = verify_ranks(with_layers(llama, change), parallel=TWO)
    assert departing(found) == "model.layers.0.mlp.down_proj"


class OfConfig(GroupedAttention):
    def _heads(self, x_Nm: Tensor, projection: Any, norm: Any) -> Tensor:
        return projection(x_Nm).view(-1, 4 if projection is self.q_proj else 2, self.head_dim)


def test_a_number_of_heads_that_is_not_the_ranks(llama: Job) -> None:
    def change(layer: Any, config: Any) -> None:
        layer.self_attn = OfConfig(32, 4, 2, 8, bias=True, out_bias=True)

    job = with_layers(llama, change)
    assert verify_ranks(job, parallel=Parallel(pp=2)).ok
    with pytest.raises(BringupError, match="BU711") as caught:
        verify_ranks(job, parallel=TWO)
    assert "`model.layers.0.self_attn` fails on rank" in caught.value.findings[0].message


def test_a_bias_that_every_rank_adds(llama: Job) -> None:
    """TensorRT-LLM adds it after the sum; these ranks do before."""
    found = verify_ranks(llama, parallel=replace(TWO, bias="every"))
    assert departing(found) == "model.layers.0.self_attn.o_proj"


@pytest.mark.parametrize(
    ("config", "division", "parameter", "module"),
    [
        (LlamaConfig(**SIZES), TWO, "mlp.up_proj", "model.layers.0.mlp.down_proj"),
        (LlamaConfig(**SIZES), Parallel(tp=4), "self_attn.v_proj", "model.layers.0.self_attn.o_proj"),
        (LlamaConfig(**SIZES), TWO, "embed_tokens", "model.embed_tokens"),
        (LlamaConfig(**SIZES), TWO, "lm_head", "lm_head"),
        (Olmo2Config(**SIZES), TWO, "self_attn.q_proj", "model.layers.0.self_attn.q_norm"),
        (MIXTRAL, Parallel(ep=2), "experts.up_proj", "model.layers.0.mlp.experts"),
        (MIXTRAL, Parallel(tp=4, ep=2), "experts.down_proj", "model.layers.0.mlp.experts"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_a_part_of_another_rank(
    config: Any, division: Parallel, parameter: str, module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every rank gets the first one's part of one kind of parameter."""
    job = open_job(checkpoint=str(parity.save_checkpoint(config, tmp_path)))
    assert verify_ranks(job, parallel=division).ok
    cut = rank_plan._cut

    def wrong(entry: Any, parallel: Parallel, rank: Any, experts: Any) -> Region:
        first = parallel.rank(0) if parameter in entry.declared.name else rank
        return cut(entry, parallel, first, experts)

    monkeypatch.setattr(rank_plan, "_cut", wrong)
    found = verify_ranks(job, parallel=division)
    assert not found.ok
    named = departing(found)
    assert named == module or named.startswith(module.rpartition(".")[0])


def test_expert_maps(tmp_path: Path) -> None:
    """Physical experts in another order, of which some repeat: a token is computed by one copy of its experts."""
    job = open_job(checkpoint=str(parity.save_checkpoint(MIXTRAL, tmp_path)))
    for row in ((3, 1, 0, 2), (2, 0, 1, 3, 3, 0), (0, 0, 1, 1, 2, 3)):
        found = verify_ranks(job, parallel=Parallel(ep=2, experts=(row,)))
        assert found.ok, row
        assert np.isfinite(found.differences[0].relative)


@pytest.mark.parametrize("copies", [0, 4])
def test_a_part_that_one_rank_alone_has(copies: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the first rank never reads: the head of another, and the second copies of experts."""
    job = open_job(checkpoint=str(parity.save_checkpoint(MIXTRAL, tmp_path)))
    division = Parallel(ep=2, redundant=copies)
    assert verify_ranks(job, parallel=division).ok
    cut = rank_plan._cut

    def wrong(entry: Any, parallel: Parallel, rank: Any, experts: Any) -> Region:
        region = cut(entry, parallel, rank, experts)
        is_lost = rank.number == 1 and ("experts.up_proj" if copies else "lm_head") in entry.declared.name
        return replace(region, nests=()) if is_lost else region

    monkeypatch.setattr(rank_plan, "_cut", wrong)
    found = verify_ranks(job, parallel=division)
    assert departing(found) == ("model.layers.0.mlp.experts" if copies else "lm_head")
    assert copies or found.differences[0].phase == "ep 2: rank 1"


class Table(Module):
    def __init__(self, vocab: int, m: int) -> None:
        super().__init__()
        self.weight = Param("vocab m", vocab=vocab, m=m)

    def forward(self, rows_N: Tensor) -> Tensor:
        return self.weight[rows_N]


class Uncalled(GatedMLP):
    def forward(self, x_Nm: Tensor) -> Tensor:
        return (self.gate_proj(x_Nm).sigmoid() * self.up_proj(x_Nm)) @ self.down_proj.weight.T


def test_a_matrix_whose_exchange_is_not_known(llama: Job) -> None:
    def uncalled(layer: Any, config: Any) -> None:
        layer.mlp = Uncalled(config.hidden, config.ffn, config.activation)

    class OwnTable(Llama):
        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.model.embed_tokens = Table(config.vocab_size, config.hidden)

    arrays = materialise(llama.plan, llama.checkpoint)
    with pytest.raises(BringupError, match="BU712") as caught:
        verify_ranks(job_of(OwnTable(cast(Any, llama.graph.config)), arrays), parallel=TWO)
    assert "`model.embed_tokens.weight` (`vocab m`)" in caught.value.findings[0].message
    with pytest.raises(BringupError, match="BU712") as caught:
        verify_ranks(with_layers(llama, uncalled), parallel=TWO)
    assert "without a call of `model.layers.0.mlp.down_proj`" in caught.value.findings[0].message


def raising(error: Exception) -> Any:
    class Raising(GatedMLP):
        def forward(self, x_Nm: Tensor) -> Tensor:
            up_Nf = self.up_proj(x_Nm)
            if up_Nf.shape[1] < 48:
                raise error
            return self.down_proj(up_Nf)

    return Raising


class OfValues(GatedMLP):
    """Takes one of two ways, by values that differ from rank to rank."""

    def forward(self, x_Nm: Tensor) -> Tensor:
        up_Nf = self.up_proj(x_Nm)
        mixed_Nm = self.down_proj(up_Nf)
        return mixed_Nm + self.down_proj(up_Nf * 2) if bool(up_Nf.sum() > self.threshold) else mixed_Nm


@pytest.mark.parametrize(
    "error", [RuntimeError(), ValueError("x"), IndexError(3), AssertionError(), KeyError("k")], ids=repr
)
def test_any_error_of_a_forward(error: Exception, llama: Job) -> None:
    def change(layer: Any, config: Any) -> None:
        layer.mlp = raising(error)(config.hidden, config.ffn, config.activation)

    with pytest.raises(BringupError, match="BU711") as caught:
        verify_ranks(with_layers(llama, change), parallel=TWO)
    assert f"`model.layers.0.mlp` fails on rank 0: {type(error).__name__}" in caught.value.findings[0].message


def test_ranks_that_take_different_ways(llama: Job) -> None:
    """No rank waits for ever. The threshold is between the sums of the two ranks."""
    weight = materialise(llama.plan, llama.checkpoint)["model.layers.0.mlp.up_proj.weight"]
    assert weight.shape == (48, 32)
    found = list[str]()
    for threshold in (-1e9, -20.0, -5.0, -1.0, 0.0, 1.0, 5.0, 20.0, 1e9):

        def change(layer: Any, config: Any, threshold: float = threshold) -> None:
            layer.mlp = OfValues(config.hidden, config.ffn, config.activation)
            layer.mlp.threshold = threshold

        try:
            verify_ranks(with_layers(llama, change), parallel=TWO)
        except BringupError as error:
            found += [finding.message for finding in error.findings]
    assert found
    assert all(text.startswith("the ranks do not make the same exchanges: rank") for text in found)


def test_nan_of_the_undivided_graph(llama: Job) -> None:
    class Nan(GatedMLP):
        def forward(self, x_Nm: Tensor) -> Tensor:
            return super().forward(x_Nm) * float("nan")

    def change(layer: Any, config: Any) -> None:
        layer.mlp = Nan(config.hidden, config.ffn, config.activation)

    with pytest.raises(BringupError, match="BU708") as caught:
        verify_ranks(with_layers(llama, change), parallel=TWO)
    assert caught.value.findings[0].parameter == "model.layers.0.mlp"
