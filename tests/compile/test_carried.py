"""Layers that pass several values on: a hidden state and a residual that the next norm adds, as kernels fuse it.

m hidden · N tokens of the step
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig as TransformersConfig

import bringup
from bringup.compile.job import Job
from bringup.compile.verify.command import parity_of
from bringup.diagnostics import BringupError
from bringup.graphs import GatedMLP, GroupedAttention, PreNormLayer
from bringup.graphs.llama import Llama
from tests.models import parity

LAYERS, TOKENS, VOCABULARY = 3, 45, 61
SIZES = {"vocab_size": VOCABULARY, "hidden_size": 24, "intermediate_size": 20, "num_attention_heads": 3}


class AddNormLayer(PreNormLayer):
    def forward(self, x_Nm: torch.Tensor, residual_Nm: torch.Tensor, *shared: Any) -> Any:
        cos, sin, step = shared
        residual_Nm = residual_Nm + x_Nm
        x_Nm = self.self_attn(self.input_layernorm(residual_Nm), cos, sin, step)
        residual_Nm = residual_Nm + x_Nm
        return self.mlp(self.post_attention_layernorm(residual_Nm)), residual_Nm


class Doubled(AddNormLayer):
    def forward(self, *values: Any) -> Any:
        x_Nm, residual_Nm = super().forward(*values)
        return x_Nm * 2, residual_Nm


class Carrying(Llama):
    carried = 2

    def layer(self, config: Any, index: int) -> PreNormLayer:
        attention = GroupedAttention(config.hidden, config.num_heads, config.num_kv_heads, config.head_dim)
        mlp = GatedMLP(config.hidden, config.ffn, config.activation)
        return AddNormLayer(config.hidden, config.eps, attention, mlp)

    def prologue(self, step: Any) -> tuple[torch.Tensor, ...]:
        x_Nm, *rows = super().prologue(step)
        return (x_Nm, torch.zeros_like(x_Nm), *rows)

    def hidden_state(self, x_Nm: torch.Tensor, residual_Nm: torch.Tensor) -> torch.Tensor:
        return x_Nm + residual_Nm

    def final(self, x_Nm: torch.Tensor, residual_Nm: torch.Tensor) -> torch.Tensor:
        return self.model.norm(x_Nm + residual_Nm)

    def epilogue(self, x_Rm: torch.Tensor, residual_Rm: torch.Tensor) -> torch.Tensor:
        return self.lm_head(self.final(x_Rm, residual_Rm))


class Forgetting(AddNormLayer):
    def forward(self, *values: Any) -> Any:
        return super().forward(*values)[0]


class Forgetful(Carrying):
    """Its layers give one value of two."""

    def layer(self, config: Any, index: int) -> PreNormLayer:
        layer = super().layer(config, index)
        return Forgetting(config.hidden, config.eps, layer.self_attn, layer.mlp)


class Widening(Carrying):
    """Its prologue gives the residual in another dtype than its layers."""

    def prologue(self, step: Any) -> tuple[torch.Tensor, ...]:
        x_Nm, residual_Nm, *rows = super().prologue(step)
        return (x_Nm, residual_Nm.int(), *rows)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = TransformersConfig(**SIZES, num_hidden_layers=LAYERS, max_position_embeddings=128)
    return parity.save_checkpoint(config, tmp_path_factory.mktemp("carried") / "model")


def job_of(checkpoint: Path, graph: type[Llama]) -> Job:
    job = bringup.open_job(checkpoint=str(checkpoint))
    return replace(job, graph=graph(job.graph.config, job.graph.dtype))


@pytest.mark.slow
@pytest.mark.parametrize("target", ["torch", "cpu"])
def test_logits_and_hidden_states_are_those_of_transformers(checkpoint: Path, target: str, tmp_path: Path) -> None:
    tokens = parity.random_tokens(TOKENS, VOCABULARY)
    with torch.no_grad():
        output = parity.load_reference(checkpoint)(torch.tensor([tokens]), output_hidden_states=True)
    job = job_of(checkpoint, Carrying)
    out = bringup.build(job, out=tmp_path / "b", target=target, buckets=(32,), aux_hidden=(0, 2, LAYERS))
    session = bringup.load(out)
    entry = session.interface.entry("decode")
    assert [len(session.interface.function(call.function).results) for call in entry.calls] == [4, 2, 2, 2, 1, 1, 1, 1]
    logits = session.prefill(tokens[:-1])
    prompt = dict(session.hidden)
    last = session.decode(tokens[-1])
    assert np.abs(logits[-1] - output.logits[0, -2].numpy()).max() <= 1e-4
    assert np.abs(last - output.logits[0, -1].numpy()).max() <= 1e-4
    for index in (0, 2, LAYERS):
        theirs = output.hidden_states[index][0].numpy()
        ours = np.concatenate([prompt[f"hidden.{index}"], session.hidden[f"hidden.{index}"]])
        assert np.abs(ours - theirs).max() <= 1e-4 * np.abs(theirs).max()


# Faults of the graph are found by torch, whatever the target: one of them on `cpu`.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "target"),
    [
        ("", "torch"),
        ("model.layers.1.post_attention_layernorm", "torch"),
        ("model.layers.2", "torch"),
        ("model.layers.2", "cpu"),
    ],
)
def test_verify_names_the_module_at_fault(checkpoint: Path, target: str, fault: str, tmp_path: Path) -> None:
    job = job_of(checkpoint, Carrying)
    if fault.endswith("norm"):
        job.graph.model.layers[1].post_attention_layernorm.eps = 0.5
    elif fault:  # in the layer's own code
        job.graph.model.layers[2].__class__ = Doubled
    session = bringup.load(bringup.build(job, out=tmp_path / "b", target=target, buckets=(32,), all_logits=True))
    found = parity_of(session, job, bisect=True)
    assert found.ok == (not fault)
    assert [finding.parameter for finding in found.findings if finding.code == "BU701"] == ([fault] if fault else [])


@pytest.mark.parametrize(
    ("graph", "said"),
    [
        (Forgetful, "the graph carries 2 values from layer to layer, and `model.layers.0` returns 1"),
        (
            Widening,
            r"`model.layers.0` returns value 1 as float32 \[32, 24\], and the next layer expects int32 \[32, 24\]",
        ),
    ],
)
def test_a_layer_that_gives_what_the_next_does_not_take(
    checkpoint: Path, graph: Callable[..., Llama], said: str, tmp_path: Path
) -> None:
    with pytest.raises(BringupError, match=f"BU304: {said}"):
        bringup.build(job_of(checkpoint, graph), out=tmp_path / "b", target="torch", buckets=(32,))  # type: ignore[arg-type]


class OneMore(AddNormLayer):
    """Takes one more shared value."""

    def forward(self, *values: Any) -> Any:
        *values, _, step = values
        return super().forward(*values, step)


class Sharing(Carrying):
    def layer(self, config: Any, index: int) -> PreNormLayer:
        layer = super().layer(config, index)
        return OneMore(config.hidden, config.eps, layer.self_attn, layer.mlp)


class Unsized(Sharing):
    """Shares a value whose size is the number of cache blocks."""

    def prologue(self, step: Any) -> tuple[torch.Tensor, ...]:
        return *super().prologue(step), torch.zeros(step.block_table.shape[1])


class Unlike(Sharing):
    """Shares a value that has another size in a trace."""

    def prologue(self, step: Any) -> tuple[torch.Tensor, ...]:
        return *super().prologue(step), torch.zeros(3 + torch.compiler.is_exporting())


@pytest.mark.parametrize(
    ("graph", "said"),
    [
        (Unsized, r"`prologue` returns value \d as float32 \[-1\]: -1 is not a fixed size"),
        (Unlike, r"the values for `\w+\.layer0` are .*float32 \[4\] in a trace, and .*float32 \[3\] in a run"),
    ],
)
def test_a_value_that_is_another_in_a_trace(
    checkpoint: Path, graph: Callable[..., Llama], said: str, tmp_path: Path
) -> None:
    with pytest.raises(BringupError, match=f"BU304: {said}"):
        bringup.build(job_of(checkpoint, graph), out=tmp_path / "b", target="torch", buckets=(32,))  # type: ignore[arg-type]
    assert not (tmp_path / "b").exists()
