"""Configs of another model, and empty ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bringup.compile.job import open_job
from bringup.diagnostics import BringupError
from bringup.graphs.llama import LlamaConfig

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 99, "hidden_size": 64,
    "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4,
    "max_position_embeddings": 128,
}  # fmt: skip


@pytest.mark.parametrize(
    ("model", "words", "said"),
    [
        ("gpt2", {}, ["`LlamaForCausalLM`", "`GPT2LMHeadModel`", "name `llama`"]),
        (
            "llama",
            {"architectures": ["GemmaForCausalLM"], "model_type": "gemma"},
            ["`GemmaForCausalLM`", "llama graph"],
        ),
        ("llama", {"architectures": ["Qwen2ForCausalLM"]}, ["`Qwen2ForCausalLM`", "name `qwen2`"]),
        ("llama", {"architectures": None, "model_type": "helium"}, ["`helium`", "`mistral`"]),
        (None, {"model_type": "gemma"}, ["`gemma`", "`LlamaForCausalLM`"]),
        (None, {"model_type": "mixtral"}, ["`mixtral`", "name `mixtral`"]),
    ],
)
def test_a_config_of_another_model_is_one_finding(model: str | None, words: dict[str, Any], said: list[str]) -> None:
    with pytest.raises(BringupError) as caught:
        open_job(model, "dummy", config=LLAMA | words)
    (finding,) = caught.value.findings
    assert finding.code == "BU152"
    assert all(word in f"{finding.message} {finding.help}" for word in said), (finding.message, finding.help)


@pytest.mark.parametrize(
    ("words", "allow"),
    [
        ({"architectures": ["MistralForCausalLM"], "model_type": "mistral"}, {}),
        ({"architectures": ["LlamaForCausalLM"], "model_type": "mistral"}, {}),
        ({"architectures": None, "model_type": None}, {}),
        ({"architectures": ["YiForCausalLM"]}, {"architectures": "Llama's code under another name"}),
        ({"model_type": "Yi"}, {"model_type": "Llama's code under another name"}),
    ],
)
def test_what_is_of_the_family_or_let_through_is_read(words: dict[str, Any], allow: dict[str, str]) -> None:
    assert not open_job("llama", "dummy", config=LLAMA | words, allow=allow).findings


def test_a_users_subclass_takes_its_own_model_type() -> None:
    """As that of examples/add_a_model/tiny.py, which extends Llama's config and lists no types."""
    from bringup.graphs.family import Family
    from bringup.graphs.identity import check_identity

    class Tiny(LlamaConfig):
        pass

    check_identity(Family(name="tiny", graph=None, config=Tiny, adapter=None), LLAMA | {"model_type": "tiny"})


# --- what is empty is not what is absent


def test_an_empty_config_is_not_ignored() -> None:
    with pytest.raises(BringupError, match="BU125"):
        open_job(None, "dummy", config={})
    with pytest.raises(BringupError, match=r"BU121.*n_embd"):
        open_job("gpt2", "dummy", config={})


@pytest.mark.parametrize(("model", "checkpoint", "code"), [("", "dummy", "BU002"), ("gpt2", "", "BU005")])
def test_an_empty_name_is_not_ignored(model: str, checkpoint: str, code: str) -> None:
    with pytest.raises(BringupError, match=code):
        open_job(model, checkpoint)


def test_an_empty_adapter_is_not_ignored() -> None:
    with pytest.raises(BringupError, match="BU004"):
        open_job("gpt2", "dummy", adapter="")


@pytest.mark.parametrize(
    ("config", "architecture", "kind", "refused"),
    [
        ("LlamaConfig", "MineForCausalLM", "mine", False),  # Llama's words, another model's name
        ("LlamaConfig", "LlamaForCausalLM", "mine", True),  # Llama's architecture comes with Llama's types
        ("MineConfig", "MineForCausalLM", "mine", False),
        ("MineConfig", "MineForCausalLM", "llama", True),
    ],
)
def test_the_types_of_a_family_of_ones_own(
    tmp_path: Path, config: str, architecture: str, kind: str, refused: bool
) -> None:
    """The types of a config class are those of the family it was written for."""
    file = tmp_path / "mine.py"
    file.write_text(
        "from bringup.adapters.llama import adapter\nfrom bringup.graphs.llama import Llama, LlamaConfig\n"
        "from bringup.graphs.family import Family\n"
        "class MineConfig(LlamaConfig):\n    model_types = ('mine',)\n"
        f"family = Family(name='own', graph=Llama, config={config}, adapter=adapter, "
        "architectures=('MineForCausalLM', 'LlamaForCausalLM'))\n",
        "utf-8",
    )
    raw = LLAMA | {"architectures": [architecture], "model_type": kind}
    if not refused:
        assert not open_job(str(file), "dummy", config=raw).findings
        return
    with pytest.raises(BringupError, match="BU152"):
        open_job(str(file), "dummy", config=raw)
