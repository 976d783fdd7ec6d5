"""What a config may say, and what a reason cannot make up for."""

from __future__ import annotations

import pytest

from bringup.diagnostics import BringupError
from bringup.graphs.config.fields import Fields
from bringup.graphs.gpt2 import SIZES, GPT2Config
from bringup.graphs.llama import LlamaConfig

SMALL_LLAMA = {
    "vocab_size": 96, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 64,
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "raw", "key"),
    [(GPT2Config, SIZES["gpt2"], "activation_function"), (LlamaConfig, SMALL_LLAMA, "hidden_act")],
)
def test_no_reason_makes_up_for_an_activation_that_is_not_there(config, raw, key):
    assert config.from_hf(raw)
    with pytest.raises(BringupError) as caught:
        config.from_hf(raw | {key: "gelu_nwe"}, {key: "I know what I do"})
    (finding,) = caught.value.findings
    assert (finding.code, finding.parameter) == ("BU122", key)
    assert "`gelu_new`" in finding.help


def test_another_activation_is_not_suggested() -> None:
    """A digit is part of a name: relu2 squares, and relu in its place would change every result. A typo is one."""
    helps = {}
    for value in ("relu2", "relv"):
        fields = Fields({"hidden_act": value}, "tiny")
        fields.choice("hidden_act", ("relu", "silu"), "silu")
        helps[value] = fields.findings[0].help
    assert "did you mean" not in helps["relu2"]
    assert helps["relv"] == "did you mean `relu`?"
