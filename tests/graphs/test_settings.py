"""Settings of the parts that decoders share, against transformers' modules at bfloat16; and what they save a family."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from transformers.models.gemma2.modeling_gemma2 import Gemma2RMSNorm, Gemma2TextScaledWordEmbedding
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.olmo2.modeling_olmo2 import Olmo2RMSNorm

import bringup.graphs
from bringup.graphs.core.step import CacheSizes
from bringup.graphs.core.to_torch import to_torch
from bringup.graphs.decoder import PreNormLayer
from bringup.graphs.layers.attention import GroupedAttention
from bringup.graphs.layers.embedding import Embedding, rounded
from bringup.graphs.layers.mlp import GatedMLP
from bringup.graphs.layers.norm import Float32RMSNorm, OnePlusRMSNorm, RMSNorm
from bringup.graphs.ops.activation import soft_cap


@pytest.mark.parametrize("family", ["gemma2", "gemma3", "olmo2"])
def test_a_family_of_other_norms_and_scales_is_a_short_file(family: str) -> None:
    file = Path(bringup.graphs.__file__).with_name(f"{family}.py")
    assert len(file.read_text("utf-8").splitlines()) <= 60


def test_the_family_in_the_docs_is_the_one_that_runs() -> None:
    graphs = Path(bringup.graphs.__file__).parent
    page = (graphs.resolve().parent / "docs/adding-a-model.md").read_text("utf-8")
    blocks = [block.partition("```")[0] for block in page.split("```python\n")[1:]]
    (shown,) = [block for block in blocks if "class Olmo2(" in block]
    assert shown in (graphs / "olmo2.py").read_text("utf-8")


def filled(module: torch.nn.Module, weight: torch.Tensor) -> torch.nn.Module:
    module.weight = torch.nn.Parameter(weight, requires_grad=False)
    return module


@pytest.mark.parametrize(
    ("ours", "theirs"), [(RMSNorm, LlamaRMSNorm), (OnePlusRMSNorm, Gemma2RMSNorm), (Float32RMSNorm, Olmo2RMSNorm)]
)
def test_norms_round_as_those_of_transformers(ours: type[RMSNorm], theirs: type) -> None:
    """Each gives the very bits of its model, and other bits than the other two."""
    random = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(shape, generator=random).bfloat16() for shape in ((50, 64), (64,)))
    normed = filled(to_torch(ours(64, 1e-5), "bfloat16", CacheSizes(context=1)), weight)(x)
    wanted = filled(theirs(64, 1e-5), weight)(x)
    assert torch.equal(normed, wanted)
    others = {RMSNorm, OnePlusRMSNorm, Float32RMSNorm} - {ours}
    for other in others:
        assert not torch.equal(filled(to_torch(other(64, 1e-5), "bfloat16", CacheSizes(context=1)), weight)(x), wanted)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_the_scale_of_embeddings_is_rounded_to_their_dtype(dtype: torch.dtype) -> None:
    for m in (36, 1152, 2304, 3072, 3584, 4608, 5376):
        assert rounded(m**0.5, dtype) == torch.tensor(m**0.5).to(dtype).item()
    rows = torch.randn((7, 3072), generator=torch.Generator().manual_seed(0)).to(dtype)
    table = Embedding("vocab m", scale=3072**0.5, vocab=7, m=3072)
    ours = filled(to_torch(table, str(dtype)[6:], CacheSizes(context=1)), rows)(torch.arange(7))
    assert torch.equal(ours, filled(Gemma2TextScaledWordEmbedding(7, 3072, 0, 3072**0.5), rows)(torch.arange(7)))


def test_a_cap_bounds() -> None:
    x = torch.tensor([-1e4, -3.0, 0.0, 0.5, 1e4])
    assert soft_cap(x, None) is x
    assert torch.allclose(soft_cap(x, 2.0), 2 * torch.tanh(x / 2))
    assert soft_cap(x.bfloat16(), 2.0).dtype == torch.bfloat16


def names(norms: str) -> list[str]:
    layer = PreNormLayer(8, 1e-5, GroupedAttention(8, 2, 1, 4), GatedMLP(8, 6, "silu"), norms=norms)  # type: ignore[arg-type]
    return [name for name, part in layer.children() if isinstance(part, RMSNorm)]


def test_where_norms_are() -> None:
    """Under transformers' names for each."""
    assert names("before") == ["input_layernorm", "post_attention_layernorm"]
    assert names("after") == ["post_attention_layernorm", "post_feedforward_layernorm"]
    assert names("around") == [
        "input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm",
    ]  # fmt: skip


def test_settings_are_part_of_a_layers_likeness() -> None:
    """So that layers which compute other things are not lowered as one."""
    plain = GroupedAttention(8, 2, 1, 4)
    assert plain.scale == 1 / math.sqrt(4)
    others = [
        GroupedAttention(8, 2, 1, 4, scale=0.25),
        GroupedAttention(8, 2, 1, 4, softcap=5.0),
        GroupedAttention(8, 2, 1, 4, qk_norm=1e-5),
        GroupedAttention(8, 2, 1, 4, qk_norm=1e-5, norm=OnePlusRMSNorm),
        GroupedAttention(8, 2, 1, 4, qk_norm=1e-5, norm_over="projection"),
    ]
    kinds = [str(each.structural_key()) for each in (plain, *others)]
    assert len(set(kinds)) == len(kinds)
    layers = [PreNormLayer(8, 1e-5, plain, GatedMLP(8, 6, "silu"), rope=rope) for rope in (0, 1)]
    assert layers[0].structural_key() != layers[1].structural_key()
