"""A family in a Python file brings its own dialect: other words, another order of rows, norms stored as 1 + w."""

from __future__ import annotations

import re
from pathlib import Path

import gguf
import numpy as np
import pytest
from transformers import Qwen3Config

from bringup.compile.job import open_job
from bringup.diagnostics import BringupError
from tests.adapters import llama_cpp
from tests.adapters.written import raises
from tests.models import parity

FAMILY = '''
"""Qwen3 as a converter with conventions of its own writes it: norm weights are 1 + w, as in Gemma's files."""

from bringup.adapters.dialects.dialect import DECODER, Dialect
from bringup.adapters.algebra.expr import S
from bringup.adapters.qwen3 import adapter
from bringup.adapters.planning.adapter import Adapter, tied
from bringup.adapters.algebra.values import shift
from bringup.graphs.qwen3 import Qwen3, Qwen3Config
from bringup.graphs.family import Family


def table(config: Qwen3Config) -> Adapter:
    gguf = Adapter("mine in GGUF", defaults=("out in", "vocab m"))
    gguf["model.embed_tokens.weight"] = S("token_embd.weight")
    gguf["lm_head.weight"] = tied(S("output.weight"), S("token_embd.weight", "vocab m"), when=config.tied_head)
    gguf["model.norm.weight"] = shift(S("output_norm.weight"), -1)
    gguf["model.layers.{L}.input_layernorm.weight"] = shift(S("blk.{L}.attn_norm.weight"), -1)
    gguf["model.layers.{L}.post_attention_layernorm.weight"] = shift(S("blk.{L}.ffn_norm.weight"), -1)
    gguf["model.layers.{L}.self_attn.{x:q|k}_norm.weight"] = shift(S("blk.{L}.attn_{x}_norm.weight"), -1)
    gguf["model.layers.{L}.self_attn.{x:q|k|v}_proj.weight"] = S("blk.{L}.attn_{x}.weight")
    gguf["model.layers.{L}.self_attn.o_proj.weight"] = S("blk.{L}.attn_output.weight")
    gguf["model.layers.{L}.mlp.{x:gate|up|down}_proj.weight"] = S("blk.{L}.ffn_{x}.weight")
    return gguf


dialect = Dialect(
    names=("gemma",),
    architecture="MineForCausalLM",
    keys={**DECODER, "final_logit_softcapping": None},
    fixed={"hidden_act": "silu"},
    table=table,
)
family = Family(name="mine", graph=Qwen3, config=Qwen3Config, adapter=adapter, dialect=dialect)
'''
CONFIG = Qwen3Config(
    vocab_size=131, num_hidden_layers=2, max_position_embeddings=512, hidden_size=48, intermediate_size=64,
    num_attention_heads=6, num_key_value_heads=2, head_dim=12,
)  # fmt: skip


def one_more(tensors: llama_cpp.Tensors, config: llama_cpp.Config) -> llama_cpp.Tensors:
    """Norm weights as `GemmaModel.modify_tensors` writes them."""
    return {name: array + np.float32(1) if name.endswith("norm.weight") else array for name, array in tensors.items()}


@pytest.fixture
def family(tmp_path: Path) -> str:
    (tmp_path / "mine.py").write_text(FAMILY)
    return str(tmp_path / "mine.py")


def written(tmp_path: Path) -> tuple[Path, Path]:
    folder = parity.save_checkpoint(CONFIG, tmp_path / "transformers")
    names = {
        f"model.layers.{layer}.self_attn.{x}_norm.weight": f"blk.{layer}.attn_{x}_norm.weight"
        for layer in range(2)
        for x in "qk"
    }
    names |= {f"model.layers.{i}.post_attention_layernorm.weight": f"blk.{i}.ffn_norm.weight" for i in range(2)}
    names |= {"lm_head.weight": "output.weight"}
    arch = gguf.MODEL_ARCH.GEMMA
    return folder, llama_cpp.convert(folder, tmp_path / "m.gguf", arch, tensors=one_more, rename=names)


def test_a_family_of_a_file_brings_its_dialect(tmp_path: Path, family: str) -> None:
    folder, file = written(tmp_path)
    job = llama_cpp.assert_same_logits(folder, file, family)
    assert job.config["architectures"] == ["MineForCausalLM"]


def test_without_the_file_no_graph_serves_it(tmp_path: Path, family: str) -> None:
    _, file = written(tmp_path)
    with raises("BU125", "architecture `gemma`"):
        open_job(None, str(file))


def test_a_family_of_a_file_without_a_dialect(tmp_path: Path, family: str) -> None:
    _, file = written(tmp_path)
    Path(family).write_text(FAMILY.replace(", dialect=dialect)", ")"))
    with raises("BU227", r"`mine` has no GGUF dialect.*Family\(dialect=…\)"):
        open_job(family, str(file))


def test_a_dialect_that_is_none(tmp_path: Path, family: str) -> None:
    _, file = written(tmp_path)
    Path(family).write_text(FAMILY.replace(", dialect=dialect)", ", dialect=table)"))
    with raises("BU004", "dialect of `mine` is a function"):
        open_job(family, str(file))


@pytest.mark.parametrize(
    ("dialect", "message"),
    [
        ('"nomodule:dialect"', r"`nomodule:dialect` of the family `mine` cannot be loaded: there is no module"),
        ('"json:nothing"', "`json` defines no `nothing`"),
        ('"json"', "it is not of the form `module:name`"),
        ("table", "the dialect of `mine` is a function, not a `Dialect`"),
    ],
)
def test_a_dialect_that_cannot_be_loaded(
    tmp_path: Path, family: str, monkeypatch: pytest.MonkeyPatch, dialect: str, message: str
) -> None:
    """It is an error if the family is named, and a warning if it might be the one that a file lacks."""
    _, file = written(tmp_path)
    Path(family).write_text(FAMILY.replace(", dialect=dialect)", f", dialect={dialect})"))
    with raises("BU004", message):
        open_job(family, str(file))
    monkeypatch.setenv("BRINGUP_MODELS", str(tmp_path))
    with pytest.raises(BringupError) as caught:
        open_job(None, str(file))
    error, warning = caught.value.findings
    assert (error.code, error.file, warning.code, warning.severity) == ("BU125", str(file), "BU004", "warning")
    assert re.search(message, warning.message)
